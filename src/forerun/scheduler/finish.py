"""The finish rule: tokens are appended one at a time, whether a step yielded one or sixteen.

After the token that ends a sequence nothing is appended, counted or reported, so a stop in the middle of an accepted
draft looks exactly like a stop in plain decoding. A stop wins over a length limit reached by the same token.
"""

import logging
from dataclasses import replace

from forerun.batch import Drawn, Outcome
from forerun.errors import one_line
from forerun.sequence import FinishReason, Sequence, TokenLogprob

log = logging.getLogger(__name__)


def finish_reason(sequence: Sequence, max_model_len: int) -> FinishReason | None:
    """Does the token just appended end the sequence? Feeds the stop matcher."""
    token = sequence.tokens[-1]
    params = sequence.params
    may_stop = sequence.num_output >= params.min_tokens
    stopped = sequence.stop_matcher is not None and sequence.stop_matcher.push(token, may_stop)
    is_end = token in params.stop_token_ids or (token in sequence.request.eos_ids and not params.ignore_eos)
    if stopped or (is_end and may_stop):
        return FinishReason.STOP
    if params.max_tokens is not None and sequence.num_output >= params.max_tokens:
        return FinishReason.LENGTH
    if len(sequence.tokens) >= max_model_len:
        return FinishReason.LENGTH
    return None


def append_tokens(sequence: Sequence, outcome: Outcome, drawn: Drawn, max_model_len: int, now: float) -> Outcome:
    """Append an outcome's tokens until one finishes the sequence; returns the outcome cut behind that token.

    Mutates tokens, token_mask, finish, logprobs, logits_hashes, drafted_by and stats.
    """
    params, stats = sequence.params, sequence.stats
    appended = 0
    for depth, (token, row) in enumerate(zip(outcome.tokens, outcome.rows, strict=True)):
        sequence.tokens.append(token)
        appended += 1
        is_draft = depth < len(outcome.accepted)
        sequence.drafted_by.append(outcome.tree.sources[outcome.accepted[depth]] if is_draft else "")
        if params.logprobs is not None:
            sequence.logprobs.append(TokenLogprob(token, float(drawn.logprobs[row]), drawn.top[row]))
        if params.logits_hash:
            sequence.logits_hashes.append(drawn.hashes[row])
        try:
            sequence.finish = finish_reason(sequence, max_model_len)
            if sequence.finish is None and sequence.token_mask is not None:
                sequence.token_mask.advance(token)
        except Exception as error:  # a matcher that fails ends its own sequence only
            log.exception("a matcher of sequence %d failed", sequence.id)
            sequence.finish, sequence.error = FinishReason.ERROR, one_line(error)
        if sequence.finish is not None:
            break
    if sequence.finish is None and not outcome.is_finite:
        sequence.finish = FinishReason.NUMERICAL_ERROR
        sequence.error = "the model produced NaN or no finite logit"
        if sequence.token_mask is not None:
            sequence.error += ", or the grammar allows no token here"
    if appended < len(outcome.tokens):
        accepted, tokens, rows = outcome.accepted[:appended], outcome.tokens[:appended], outcome.rows[:appended]
        outcome = replace(outcome, accepted=accepted, tokens=tokens, rows=rows)
    _count(sequence, outcome)
    if appended:
        stats.steps += 1
        stats.first_token_s = stats.first_token_s if stats.first_token_s is not None else now
    if sequence.finish is not None:
        stats.finished_s = now
    return outcome


def _count(sequence: Sequence, outcome: Outcome) -> None:
    """Draft statistics; accepted nodes behind a stop are cut off already."""
    stats, tree, accepted = sequence.stats, outcome.tree, len(outcome.accepted)
    if tree.num_nodes == 0:
        return
    stats.drafted += tree.num_nodes
    stats.accepted += accepted
    for name in tree.sources[1:]:
        stats.verified_by[name] = stats.verified_by.get(name, 0) + 1
    for row in outcome.accepted:
        stats.accepted_by[tree.sources[row]] = stats.accepted_by.get(tree.sources[row], 0) + 1
    reached = max(tree.depths)
    for counts, upto in ((stats.drafted_at, reached), (stats.accepted_at, accepted)):
        counts.extend([0] * (reached - len(counts)))
        for depth in range(upto):
            counts[depth] += 1
