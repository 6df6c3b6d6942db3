"""How much of the waiting prompts joins a step in which others decode, and how prompts share it.

A step with prefill may take `prefill_slowdown` times what plain decoding of its other sequences takes: that bounds the
time between two tokens of theirs, whatever the model and the machine. The rest of the time is the prompts', so with a
factor of f they get 1 - 1/f of it. Where the step would be plain anyway it is all theirs. Of several prompts all but
one count as if they decoded already: when many come to few, a step soon takes that long in any case, and a few rows for
each of them would read the weights again and again.
"""

from collections.abc import Sequence as Seq

from forerun.sampling.prompt_scores import num_unscored
from forerun.scheduler.step_time import StepTime
from forerun.sequence import Sequence

MIN_ROWS = 1  # that prompts advance per step, all together, however long the step is predicted to take


def rows_beside(decoding: Seq[Sequence], prefilling: Seq[Sequence], step_time: StepTime, slowdown: float) -> int | None:
    """Rows of prefill that a step of decoding sequences has time for; None when it has for all of them, 0 when it is to
    be measured without any."""
    if not decoding or not prefilling:
        return None
    keys = sum(len(sequence.tokens) for sequence in decoding)
    limit_s = slowdown * step_time.predict(len(decoding) + len(prefilling) - 1, keys)
    left_s = limit_s - step_time.predict(len(decoding), keys)
    context = max(sequence.num_computed for sequence in prefilling)
    pending = sum(sequence.num_pending for sequence in prefilling)
    within = step_time.rows_within(left_s, context, pending)
    if within >= pending:
        return None
    return 0 if step_time.wants_plain else step_time.at_least(within, max(MIN_ROWS, len(prefilling)))


def divide(rows: int, outputs: int, prefilling: Seq[Sequence], max_chunk: int) -> list[tuple[Sequence, int]]:
    """(sequence, rows) of each, at least one. Half of the others go to the shortest prompts, so that those soon decode,
    half are shared evenly; what a short prompt leaves over goes to the longer ones.

    outputs    rows whose logits may be computed beside the last one of each, for prompts whose tokens are scored
    max_chunk  most rows of one, 0 for no limit
    """
    shares = []
    ahead = max(0, rows - len(prefilling)) // 2  # for the shortest ones
    waiting = sorted(prefilling, key=lambda sequence: (sequence.num_pending, sequence.id))
    for index, sequence in enumerate(waiting):
        even = -(-(rows - ahead) // (len(waiting) - index))
        count = min(sequence.num_pending, even + ahead, max_chunk or rows)
        if num_unscored(sequence):  # rows behind those already scored are outputs
            scored = len(sequence.prompt_logprobs) - sequence.num_computed
            count = min(count, scored + 1 + outputs)
            outputs -= max(0, count - scored - 1)
        ahead -= max(0, count - even)
        rows -= count
        shares.append((sequence, count))
    return shares
