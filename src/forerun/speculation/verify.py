"""Coupled verification: a walk over integers.

The target has drawn its own token on every row of the walked path, with noise that depends only on (seed, position,
token). Following those draws through the tree decides which drafted rows are kept; the emitted tokens are the target's
own draws in any case, so no drafter, draft length or tree shape can change them.

    root "the" ── 1 "cat" ── 2 "sat"      draws: root -> cat, row 1 -> slept
                                          accepted (1,), emitted (cat, slept)

Source: coupled ("drafter-invariant") speculative decoding with shared Gumbel noise, Daliri et al., arXiv:2408.07978.
"""

from forerun.batch import NOT_FINITE, Batch, Drawn, DrawRequest, Outcome


def verify(batch: Batch, drawn: Drawn) -> tuple[Outcome, ...]:
    """One outcome per Batch.draws entry. Raises ValueError when a row on the walked path was not drawn."""
    return tuple(_walk(draw, drawn) for draw in batch.draws)


def _walk(draw: DrawRequest, drawn: Drawn) -> Outcome:
    accepted: list[int] = []
    tokens: list[int] = []
    rows: list[int] = []
    row: int | None = 0
    while row is not None:
        output = draw.first_output + row
        token = int(drawn.tokens[output])
        if token == NOT_FINITE:
            return Outcome(draw.tree, tuple(accepted), tuple(tokens), tuple(rows), is_finite=False)
        if token < 0:
            raise ValueError(f"output row {output} lies on the walked path but was not drawn")
        tokens.append(token)
        rows.append(output)
        row = draw.tree.child(row, token)
        if row is not None:
            accepted.append(row)
    return Outcome(draw.tree, tuple(accepted), tuple(tokens), tuple(rows))
