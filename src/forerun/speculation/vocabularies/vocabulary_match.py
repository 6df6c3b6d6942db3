"""num_shared_ids: do two models mean the same by their token ids, and for how many?

A draft model reads the target's tokens as they are, so an id that both know must stand for the same bytes. Ids behind
the end of the shorter vocabulary are padding or the target's own additions: they are never proposed, and the draft
model reads a stand-in for them.
"""

from forerun.errors import UsageError
from forerun.speculation.host import OpenedModel


def num_shared_ids(target: OpenedModel, draft: OpenedModel) -> int:
    """Ids that both models know.

    Raises UsageError at the first id whose bytes differ, or that is a control token of one model only.
    """
    mine, other = target.vocabulary, draft.vocabulary
    count = min(mine.vocab_size, other.vocab_size)
    for token in range(count):
        if mine.token_bytes(token) != other.token_bytes(token) or mine.is_special(token) != other.is_special(token):
            raise UsageError(
                f"the draft model's tokens are not the target's: id {token} is {_show(target, token)} in {target.name} "
                f"and {_show(draft, token)} in {draft.name}; choose a draft model of the same family, or "
                "match=intersection or match=text for one with another tokenizer"
            )
    return count


def _show(model: OpenedModel, token: int) -> str:
    text = model.vocabulary.decode([token], skip_special=False)
    return f"the control token {text!r}" if model.vocabulary.is_special(token) else repr(text)
