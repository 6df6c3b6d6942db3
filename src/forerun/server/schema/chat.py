"""The body of POST /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from forerun.errors import RequestError
from forerun.server.schema.content import Content
from forerun.server.schema.options import GenerationOptions, Schema
from forerun.server.schema.refused import REFUSED_VALUES


def _text_only(value: list[str] | None) -> list[str] | None:
    if value is not None and value != ["text"]:
        raise PydanticCustomError("unsupported_value", "{reason}", {"reason": REFUSED_VALUES["modalities"]})
    return value


class ChatMessage(Schema):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = Field(None, description="handed to the chat template")
    reasoning_content: str | None = Field(None, description="of an earlier answer; handed to the chat template")


class ChatRequest(GenerationOptions):
    """Answer a conversation."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, le=2**31 - 1, description="older name of max_completion_tokens")
    max_completion_tokens: int | None = Field(
        None, ge=1, le=2**31 - 1, description="default: to the end of the context"
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20, description="needs logprobs")
    modalities: Annotated[list[str] | None, AfterValidator(_text_only)] = Field(None, description='only ["text"]')
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="variables of the chat template, such as enable_thinking"
    )

    @property
    def limit(self) -> int | None:
        """Longest answer in tokens. Raises RequestError when its two names say different things."""
        new, old = self.max_completion_tokens, self.max_tokens
        if new is not None and old is not None and new != old:
            raise RequestError(
                f"max_tokens is {old} and max_completion_tokens is {new}: they mean the same, pass one",
                param="max_tokens",
            )
        return new if new is not None else old

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives beside each token's log-probability, None without any. Raises RequestError."""
        if not self.logprobs and self.top_logprobs is not None:
            raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None
