"""The body of POST /v1/chat/completions."""

from typing import Literal

from pydantic import Field

from forerun.server.schema.options import GenerationOptions, Schema


class TextPart(Schema):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(Schema):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None


class ChatRequest(GenerationOptions):
    """Answer a conversation."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
