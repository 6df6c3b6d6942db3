"""The documents that clients get, as the OpenAPI document describes them; tests check what is sent against it."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """No fields but these."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Document):
    """What went wrong: a sentence for people, a word for programs, the option at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorDocument(Document):
    """Any answer that is an error."""

    error: ErrorDetail


class Speculation(Document):
    """What drafting did: forerun's own block."""

    drafted: int
    accepted: int
    drafted_by: dict[str, int]
    accepted_by: dict[str, int]
    drafted_at: list[int]
    accepted_at: list[int]
    steps: int
    tokens_per_step: float
    lossy: bool


class PromptDetails(Document):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(Document):
    """Of the answer's tokens; accepted and rejected count draft tokens out of the request's prediction."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Document):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TokenDetail(Document):
    """One output token, told with token_details."""

    id: int
    text: str
    drafter: str | None
    logprob: float | None


class _Choice(Document):
    index: int
    finish_reason: str
    seed: int
    token_details: list[TokenDetail] | None = None


class ChatChoice(_Choice):
    """One answer."""

    message: dict[str, Any]
    logprobs: dict[str, Any] | None


class _Answer(Document):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    speculation: Speculation


class ChatCompletion(_Answer):
    """A chat's answer."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class CompletionLogprobs(Document):
    """Parallel lists, one entry for each token; the prompt's first token has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_Choice):
    """One continuation."""

    text: str
    logprobs: CompletionLogprobs | None


class Completion(_Answer):
    """Continuations."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class Model(Document):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    aliases: list[str]


class ModelList(Document):
    """The models that are served: one."""

    object: Literal["list"]
    data: list[Model]


class Tokenized(Document):
    """Token ids of a text or a conversation."""

    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(Document):
    """The text of token ids."""

    text: str


class ResponseUsage(Document):
    """Token counts of /v1/responses."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: CompletionDetails
    total_tokens: int


class ResponseDocument(BaseModel):
    """A response; beside these it has the fields that OpenAI's has, with what was asked."""

    id: str
    object: Literal["response"]
    created_at: float
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    seed: int
    speculation: Speculation


class Combination(Document):
    """Options together, tried with this model and these settings."""

    endpoint: str
    options: dict[str, Any]
    honoured: bool
    reason: str | None


class Capabilities(Document):
    """What this server can honour.

    endpoints  the options of each, as JSON schemas
    refused    what clients may ask for in vain, and why: options, values of options, kinds of content, endpoints
    """

    model: dict[str, Any]
    speculation: dict[str, Any]
    limits: dict[str, int]
    endpoints: dict[str, dict[str, Any]]
    refused: dict[str, dict[str, str]]
    combinations: list[Combination]
