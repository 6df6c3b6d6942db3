"""The options that every generating endpoint shares, validated; unknown ones are refused."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from forerun.errors import RequestError
from forerun.sequence import SamplingParams, SpeculationParams

# Options that SamplingParams knows by the same name and whose default it knows best.
_SAME_NAME = (
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "n",
)


class Schema(BaseModel):
    """Strict: no unknown fields, no silent conversion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class SpeculationOptions(Schema):
    """How one request is drafted for; changes the speed, never the answer."""

    drafter: str | None = Field(None, description='"off", or one of the server\'s drafters alone')
    max_depth: int | None = Field(None, ge=1, le=63, description="longest draft in tokens")


class StreamOptions(Schema):
    """What a stream carries beside the answer."""

    include_usage: bool = Field(False, description="a last chunk with the token counts")


class GenerationOptions(Schema):
    """Sampling, limits and forerun's own options."""

    model: str = Field(description="the served model's name")
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=0, description="of the K likeliest tokens; 0 is off")
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=100.0)
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    cache_salt: str | None = Field(None, description="requests with different salts share no cached prefix")
    priority: int = Field(0, ge=-1000, le=1000, description="lower goes first; a level is worth 30 s of waiting")
    speculation: SpeculationOptions | None = None
    token_details: bool = Field(False, description="adds per token: id, text, drafter, log-probability")
    user: str | None = Field(None, description="accepted for compatibility; has no effect")

    def sampling(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """SamplingParams of these options. Raises RequestError naming an option out of range."""
        given: dict[str, Any] = {name: value for name in _SAME_NAME if (value := getattr(self, name)) is not None}
        if self.speculation is not None:
            given["speculation"] = SpeculationParams(self.speculation.drafter, self.speculation.max_depth)
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            logit_bias=_token_bias(self.logit_bias or {}),
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            **given,
        )


def _token_bias(given: dict[str, float]) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError:
        raise RequestError("logit_bias maps token ids, written as numbers, to biases", param="logit_bias") from None
