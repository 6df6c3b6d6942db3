"""The body of POST /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from forerun.errors import RequestError
from forerun.server.schema.content import Content
from forerun.server.schema.options import GenerationOptions
from forerun.server.schema.refused import REFUSED_VALUES
from forerun.server.schema.strict import Schema
from forerun.server.schema.tools import NamedTool, Tool, ToolCall, ToolChoice


def _text_only(value: list[str] | None) -> list[str] | None:
    if value is not None and value != ["text"]:
        raise PydanticCustomError("unsupported_value", "{reason}", {"reason": REFUSED_VALUES["modalities"]})
    return value


def text_of(content: Content) -> str:
    """The text of a message's content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class ChatMessage(Schema):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Annotated[str | None, Field(description="handed to the chat template")] = None
    reasoning_content: Annotated[str | None, Field(description="of an earlier answer; handed to the chat template")] = (
        None
    )
    tool_calls: Annotated[list[ToolCall] | None, Field(min_length=1, description="of an assistant's message")] = None
    tool_call_id: Annotated[str | None, Field(description="of a tool's message: the call that it answers")] = None
    refusal: Annotated[None, Field(description="of an earlier answer; has no effect")] = None
    annotations: Annotated[
        Annotated[list[Any], Field(max_length=0)] | None, Field(description="of an earlier answer; has no effect")
    ] = None
    audio: Annotated[None, Field(description="of an earlier answer; has no effect")] = None
    function_call: Annotated[None, Field(description="of an earlier answer; has no effect")] = None

    @model_validator(mode="after")
    def _has_what_its_role_has(self) -> "ChatMessage":
        def wrong(sentence: str) -> PydanticCustomError:
            return PydanticCustomError("message", "{reason}", {"reason": sentence})

        if self.tool_calls is not None and self.role != "assistant":
            raise wrong("tool_calls belong to a message of the assistant")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise wrong("tool_call_id belongs to a message of a tool, and every such message has one")
        if self.content is None and self.tool_calls is None:
            raise wrong("a message needs content, unless it calls tools")
        return self


class Prediction(Schema):
    """What the answer may turn out to be, such as the file that is edited: drafts, which change no token."""

    type: Literal["content"]
    content: Content


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

    prediction: Prediction | None = None
    tools: Annotated[list[Tool], Field(min_length=1, max_length=128)] | None = None
    tool_choice: ToolChoice | None = Field(None, description="default: auto with tools, none without")
    parallel_tool_calls: bool | None = Field(None, description="whether an answer may have several calls; default true")

    @property
    def offered(self) -> list[Tool]:
        """Tools that the model may call. Raises RequestError for options that have no meaning without tools."""
        if self.tools is None:
            for param in ("tool_choice", "parallel_tool_calls"):
                if getattr(self, param) not in (None, "none"):
                    raise RequestError(f"{param} needs tools", param=param)
            return []
        names = [tool.function.name for tool in self.tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"two tools are named {twice!r}: names must differ", param="tools")
        if isinstance(self.tool_choice, NamedTool):
            wanted = self.tool_choice.function.name
            if wanted not in names:
                raise RequestError(f"tool_choice names {wanted!r}, which is none of the tools", param="tool_choice")
        return [] if self.tool_choice == "none" else self.tools

    @property
    def must_call(self) -> list[Tool]:
        """Of the offered tools, those of which one has to be called; none where the model may choose to answer."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return [tool for tool in self.offered if tool.function.name == choice.function.name]
        return self.offered if choice == "required" else []

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
