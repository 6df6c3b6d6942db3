"""Log-probabilities of a prompt's own tokens: which rows of a step tell them, and how they are read.

The row at position p tells the token at p + 1. It is asked as a draw that can only end in that token, so what is
reported comes out of the code, and has the bits, of the log-probabilities of generated tokens. A sequence that still
has tokens to score computes their rows itself, whatever the prefix index knows. Of n > 1 choices the first is scored.
"""

from collections.abc import Sequence as Seq

import numpy as np

from forerun.batch import NOT_FINITE, Drawn, DrawRequest
from forerun.sequence import Sequence, TokenLogprob
from forerun.speculation.tree import DraftTree

_CERTAIN = np.array([1e300])  # a bias that no logit outweighs, and that keeps every sum finite


def num_unscored(sequence: Sequence) -> int:
    """Prompt tokens whose log-probability the sequence still owes; the first token has none."""
    if sequence.params.prompt_logprobs is None or sequence.choice > 0:
        return 0
    return sequence.num_prompt - 1 - len(sequence.prompt_logprobs)


def scored_positions(sequence: Sequence, start: int, stop: int) -> range:
    """Positions of start..stop-1 whose rows tell a token that is still to be scored."""
    if not num_unscored(sequence):
        return range(0)
    return range(max(start, len(sequence.prompt_logprobs)), min(stop, sequence.num_prompt - 1))


def make_score(sequence: Sequence, position: int, output: int) -> DrawRequest:
    """The forced draw that scores the prompt's token behind `position`.

    output  index of the position's row into Batch.output_rows
    """
    return DrawRequest(
        first_output=output,
        tree=DraftTree.root_only(sequence.tokens[position]),
        position=position + 1,
        key=(0, 0),
        bias_ids=np.array([sequence.tokens[position + 1]], np.int32),
        bias_values=_CERTAIN,
        logprobs=sequence.params.prompt_logprobs,
    )


def read_scores(scores: Seq[DrawRequest], drawn: Drawn) -> list[TokenLogprob]:
    """What the forced draws tell, in their order. NaN where the row holds NaN."""
    entries = []
    for score in scores:
        token, found = int(score.bias_ids[0]), int(drawn.tokens[score.first_output])
        logprob, top = float(drawn.logprobs[score.first_output]), drawn.top[score.first_output]
        if found == NOT_FINITE:
            logprob = float("nan")
        elif found != token:  # the model rules the token out
            logprob = float("-inf")
        entries.append(TokenLogprob(token, logprob, top))
    return entries
