"""The options that generating endpoints share, validated; unknown ones are refused."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from forerun.errors import RequestError
from forerun.grammar.source import Grammar
from forerun.sequence import SamplingParams, SpeculationParams
from forerun.server.schema.guided import GuidedOptions, ResponseFormat, grammar_of
from forerun.server.schema.refused import REFUSED_OPTIONS, REFUSED_VALUES
from forerun.server.schema.strict import Schema

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
_LARGEST = 2**31 - 1
_TokenId = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]  # in one spelling, so that none is given twice


def only_false(name: str) -> AfterValidator:
    """A switch that may be off."""

    def check(value: bool | None) -> bool | None:
        if value:
            raise PydanticCustomError("unsupported_value", "{reason}", {"reason": REFUSED_VALUES[name]})
        return value

    return AfterValidator(check)


def only(name: str, *values: str) -> BeforeValidator:
    """An option of which only some values are known here; others are told why."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and value not in values:
            raise PydanticCustomError("unsupported_value", "{reason}", {"reason": REFUSED_VALUES[name]})
        return value

    return BeforeValidator(check)


class SpeculationOptions(Schema):
    """How one request is drafted for; changes the speed, never the answer."""

    drafter: str | None = Field(None, description='"off", or one of the server\'s drafters alone')
    max_depth: int | None = Field(None, ge=1, le=63, description="longest draft in tokens")


class StreamOptions(Schema):
    """What a stream carries beside the answer."""

    include_usage: bool | None = Field(None, description="a last chunk with the token counts")
    include_obfuscation: Annotated[bool | None, only_false("include_obfuscation")] = Field(
        None, description="only false: streams are not padded"
    )


class HarmlessOptions(Schema):
    """Options that clients send and that ask for nothing, or for what is so anyway."""

    user: str | None = Field(None, description="accepted for compatibility; has no effect")
    safety_identifier: str | None = Field(None, description="accepted for compatibility; has no effect")
    prompt_cache_key: str | None = Field(None, description="accepted for compatibility; prefixes are found by content")
    metadata: dict[str, str] | None = Field(None, description="accepted for compatibility; has no effect")
    store: Annotated[bool | None, only_false("store")] = Field(None, description="only false: nothing is stored")
    service_tier: Annotated[Literal["auto", "default"] | None, only("service_tier", "auto", "default")] = Field(
        None, description="there is one tier"
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        """What is refused may be null, as anything may that is not asked for."""
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if not (value is None and key in REFUSED_OPTIONS)}


class SamplingOptions(HarmlessOptions, GuidedOptions):
    """Sampling and forerun's own options. An option that is null is as one that is left out."""

    model: str = Field(description="the served model's name")
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0.0, le=2.0, description="0 is greedy; default 1")
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=0, le=_LARGEST, description="of the K likeliest tokens; 0 is off")
    min_p: float | None = Field(None, ge=0.0, le=1.0, description="of tokens at least this likely beside the likeliest")
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=100.0, description="over prompt and answer; 1 is off")
    logit_bias: dict[_TokenId, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = Field(
        None, description="token ids to what is added to their logits"
    )
    seed: int | None = Field(None, ge=-(2**127), lt=2**127, description="repeats an answer; one is drawn otherwise")
    stop: str | list[str] | None = Field(None, description="strings that end the answer, at most 64")
    stop_token_ids: list[Annotated[int, Field(ge=0, le=_LARGEST)]] | None = None
    min_tokens: int | None = Field(None, ge=0, le=_LARGEST, description="no end of any kind before so many tokens")
    ignore_eos: bool | None = Field(None, description="do not end at the model's own end of text")
    cache_salt: str | None = Field(None, description="requests with different salts share no cached prefix")
    priority: int | None = Field(
        None, ge=-1000, le=1000, description="lower goes first; a level is worth 30 s of waiting; default 0"
    )
    speculation: SpeculationOptions | None = Field(None, description="how this request is drafted for")
    token_details: bool | None = Field(None, description="adds per token: id, text, drafter, log-probability")

    def sampling(
        self, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        """SamplingParams of these options. Raises RequestError naming an option out of range."""
        given: dict[str, Any] = {name: value for name in _SAME_NAME if (value := getattr(self, name, None)) is not None}
        if self.speculation is not None:
            given["speculation"] = SpeculationParams(self.speculation.drafter, self.speculation.max_depth)
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            logit_bias=_token_bias(self.logit_bias or {}),
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            **given,
        )


class GenerationOptions(SamplingOptions):
    """What chat and plain completions share."""

    n: Annotated[int, Field(ge=1, le=128)] | None = Field(None, description="choices for each prompt")
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = Field(None, description="text, or JSON of any or of a given form")

    @property
    def grammar(self) -> Grammar | None:
        """What the answer must be, None for any text. Raises RequestError."""
        return grammar_of(self, self.response_format)

    @property
    def wants_usage(self) -> bool:
        """The stream ends with the token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_stream(self) -> None:
        """Raise RequestError for options of a stream that is none."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream to be true", param="stream_options")


def _token_bias(given: dict[str, float]) -> dict[int, float]:
    return {int(token): bias for token, bias in given.items()}
