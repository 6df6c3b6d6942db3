"""The body of POST /v1/responses: text, without what needs a store."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from forerun.errors import RequestError
from forerun.server.schema.chat import ChatMessage, ChatRequest
from forerun.server.schema.content import InputContent
from forerun.server.schema.guided import FlatSchemaFormat, JsonSchemaFormat, NamedSchema, ResponseFormat, TextFormat
from forerun.server.schema.options import SamplingOptions, only, only_false
from forerun.server.schema.refused import REFUSED_VALUES, unsupported_item
from forerun.server.schema.strict import Schema


def _no_tools(tools: list[Any] | None) -> list[Any] | None:
    if tools:
        raise PydanticCustomError("unsupported_value", "{reason}", {"reason": REFUSED_VALUES["tools"]})
    return tools


class InputMessage(Schema):
    """One message of the conversation, or one that an earlier response gave."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: InputContent
    id: str | None = Field(None, description="of an earlier answer; has no effect")
    status: str | None = Field(None, description="of an earlier answer; has no effect")
    phase: str | None = Field(None, description="of an earlier answer; has no effect")

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ReasoningText(Schema):
    """A piece of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(Schema):
    """What an earlier response thought before its message."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)
    id: str | None = Field(None, description="of an earlier answer; has no effect")
    status: str | None = Field(None, description="of an earlier answer; has no effect")
    encrypted_content: None = None


def _refuse_by_name(item: Any) -> Any:
    kind = item.get("type") if isinstance(item, dict) else None
    if isinstance(kind, str) and (sentence := unsupported_item(kind)) is not None:
        raise PydanticCustomError("unsupported_content", "{reason}", {"reason": sentence})
    return item


InputItem = Annotated[InputMessage | InputReasoning, BeforeValidator(_refuse_by_name)]


class TextOptions(Schema):
    """The form of the answer."""

    format: TextFormat | None = None

    @property
    def response_format(self) -> ResponseFormat | None:
        """The same as a chat writes it."""
        if not isinstance(self.format, FlatSchemaFormat):
            return self.format
        schema = NamedSchema.model_validate(self.format.model_dump(by_alias=True, exclude={"type"}))
        return JsonSchemaFormat(type="json_schema", json_schema=schema)


def _message(
    role: Literal["system", "developer", "user", "assistant"], text: str, thought: str | None = None
) -> ChatMessage:
    return ChatMessage(role=role, content=text, reasoning_content=thought)


class ResponseStreamOptions(Schema):
    """What a stream carries beside the answer."""

    include_obfuscation: Annotated[bool | None, only_false("include_obfuscation")] = None


class ResponseRequest(SamplingOptions):
    """Answer an input."""

    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = Field(None, description="goes before the input, as a system message")
    max_output_tokens: int | None = Field(None, ge=1, le=2**31 - 1, description="default: to the end of the context")
    text: TextOptions | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20, description="needs include message.output_text.logprobs")
    stream_options: ResponseStreamOptions | None = None
    truncation: Annotated[Literal["disabled"] | None, only("truncation", "disabled")] = Field(
        None, description="a conversation is never shortened"
    )
    background: Annotated[bool | None, only_false("background")] = Field(
        None, description="only false: nothing is stored"
    )
    tools: Annotated[list[Any] | None, AfterValidator(_no_tools)] = Field(None, description="only an empty list")
    tool_choice: Literal["auto", "none"] | None = Field(None, description="there are no tools to choose")
    parallel_tool_calls: bool | None = Field(None, description="there are no tools to call")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables of the chat template")

    def as_chat(self) -> ChatRequest:
        """The same request as a chat. Raises RequestError."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream to be true", param="stream_options")
        logprobs = "message.output_text.logprobs" in (self.include or ())
        if self.top_logprobs is not None and not logprobs:
            raise RequestError("top_logprobs needs include message.output_text.logprobs", param="top_logprobs")
        shared = {name: getattr(self, name) for name in SamplingOptions.model_fields}
        return ChatRequest(
            **shared,
            messages=self._messages(),
            max_completion_tokens=self.max_output_tokens,
            logprobs=logprobs,
            top_logprobs=self.top_logprobs,
            chat_template_kwargs=self.chat_template_kwargs,
            response_format=self.text.response_format if self.text is not None else None,
        )

    def _messages(self) -> list[ChatMessage]:
        messages = [] if self.instructions is None else [_message("system", self.instructions)]
        if isinstance(self.input, str):
            return [*messages, _message("user", self.input)]
        thought: str | None = None
        for item in self.input:
            if isinstance(item, InputReasoning):
                thought = "".join(part.text for part in item.content or ()) or None
                continue
            kept = thought if item.role == "assistant" else None
            messages.append(_message(item.role, item.text, kept))
            thought = None
        if not messages:
            raise RequestError("input has no message", param="input")
        return messages
