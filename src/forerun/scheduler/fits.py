"""check_fits: what could never run is refused when it comes."""

from forerun.errors import RequestError


def check_fits(num_prompt: int, max_tokens: int | None, min_tokens: int, *, context: int, capacity: int) -> None:
    """Raise RequestError with the numbers for a request that no engine of this size could finish as asked.

    context   most tokens of a sequence
    capacity  tokens that the whole KV cache holds
    """
    if num_prompt < 1:
        raise RequestError("the prompt is empty: give it at least one token", param="prompt")
    if num_prompt >= context:
        raise RequestError(
            f"the prompt has {num_prompt} tokens but the context holds {context}, one of them for the answer: "
            "shorten the prompt or raise max_model_len",
            param="prompt",
            code="context_length_exceeded",
        )
    if min_tokens > context - num_prompt:
        raise RequestError(
            f"min_tokens is {min_tokens} but the context holds {context}, {num_prompt} of it the prompt: lower it",
            param="min_tokens",
        )
    longest = context if max_tokens is None else min(context, num_prompt + max_tokens)
    if longest > capacity:
        raise RequestError(
            f"the request may grow to {longest} tokens but the KV cache holds {capacity}: "
            "lower max_tokens or raise kv_cache_bytes",
            param="max_tokens",
        )
