"""From a prompt to a request, and from a sequence to its text and its result."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

from forerun.errors import RequestError
from forerun.results import Choice, GenerationStats
from forerun.sequence import Request, SamplingParams, Sequence, TokenLogprob, TokenMask
from forerun.text.detokenizer import LiveText
from forerun.text.tokenizer import Tokenizer

Prompt = str | Seq[int]


def make_request(
    tokenizer: Tokenizer,
    prompt: Prompt,
    params: SamplingParams,
    *,
    id: str,
    salt: str = "",
    continues: bool | None = None,
    priority: int = 0,
) -> Request:
    """A request for the engine, whose text is kept as it comes (`live_text`).

    prompt     text, encoded as a prompt, or token ids
    priority   lower goes first, see scheduler/queue
    continues  the output goes on in the middle of a text, so the space before its first word is kept; None: when the
               prompt is text

    Raises RequestError for a prompt that is no list of whole numbers, UsageError for invalid Unicode.
    """
    is_text = isinstance(prompt, str)
    ids = tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else prompt
    goes_on = is_text if continues is None else continues
    return Request(
        id=id,
        prompt=tuple(ids),
        params=params,
        eos_ids=tokenizer.eos_ids,
        salt=salt,
        priority=priority,
        make_stop_matcher=lambda: LiveText(tokenizer, params.stop, continues=goes_on),
    )


def under_grammar(request: Request, make_token_mask: Callable[[], TokenMask]) -> Request:
    """The request, whose text a grammar rules. Raises RequestError for an option that it rules out."""
    for param in ("ignore_eos", "min_tokens"):
        if getattr(request.params, param):
            raise RequestError(f"{param} has no place under a grammar, which says where the text ends", param=param)
    return replace(request, make_token_mask=make_token_mask)


def predicting(request: Request, tokenizer: Tokenizer, prediction: Prompt) -> Request:
    """The request with what its text may turn out to be, which the drafter `prediction` drafts from."""
    ids = tokenizer.encode(prediction, special=False) if isinstance(prediction, str) else prediction
    return replace(request, prediction=tuple(ids))


def showing(request: Request, tokenizer: Tokenizer, shown: frozenset[int]) -> Request:
    """An answer's request, with the text of these control tokens in its text."""
    stop = request.params.stop
    return replace(request, make_stop_matcher=lambda: LiveText(tokenizer, stop, shown=shown))


def live_text(sequence: Sequence) -> LiveText:
    """The text of a sequence that `make_request` began, as far as it has come."""
    matcher = sequence.stop_matcher
    if not isinstance(matcher, LiveText):
        raise TypeError("the sequence was not made by make_request")
    return matcher


def drafters_of_pieces(sequence: Sequence) -> list[str]:
    """Per piece of the live text: whose draft its token was, "" for the target's own and for what was held back."""
    return sequence.drafted_by + [""] * (len(live_text(sequence).pieces) - len(sequence.drafted_by))


def choice_of(sequence: Sequence) -> Choice:
    """The result of a finished sequence."""
    if sequence.finish is None:
        raise ValueError("the sequence is not finished")
    return Choice(
        index=sequence.choice,
        text=live_text(sequence).finish(),
        token_ids=tuple(sequence.output),
        finish_reason=sequence.finish,
        seed=sequence.seed,
        stats=GenerationStats.of(sequence),
        logprobs=tuple(sequence.logprobs) if sequence.params.logprobs is not None else None,
        prompt_logprobs=prompt_logprobs_of(sequence),
        logits_hashes=tuple(sequence.logits_hashes),
        error=sequence.error,
    )


def prompt_logprobs_of(sequence: Sequence) -> tuple[TokenLogprob, ...] | None:
    """Log-probabilities of the prompt that a sequence shares with its siblings, None when nobody asked."""
    if sequence.params.prompt_logprobs is None:
        return None
    return tuple((sequence.fork_of or sequence).prompt_logprobs)
