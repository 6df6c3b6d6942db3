"""The bodies of POST /tokenize and /detokenize."""

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from forerun.server.schema.chat import ChatMessage
from forerun.server.schema.strict import Schema


class TokenizeRequest(Schema):
    """The ids of a text, or of a conversation as the model reads it."""

    model: str | None = Field(None, description="the served model's name")
    text: str | None = None
    add_special_tokens: bool | None = Field(
        None, description="with text: begin as a prompt does (default) and read the text's control tokens as such"
    )
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables of the chat template")

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeRequest":
        if (self.text is None) == (self.messages is None):
            raise PydanticCustomError("one_of", "pass text or messages, one of them", {"param": "text"})
        if self.text is None and self.add_special_tokens is not None:
            sentence = "it belongs to text: a conversation has its own"
            raise PydanticCustomError("one_of", sentence, {"param": "add_special_tokens"})
        if self.text is not None and self.chat_template_kwargs is not None:
            raise PydanticCustomError("one_of", "it belongs to messages", {"param": "chat_template_kwargs"})
        return self


class DetokenizeRequest(Schema):
    """The text of token ids."""

    model: str | None = Field(None, description="the served model's name")
    tokens: list[Annotated[int, Field(ge=0, le=2**31 - 1)]]
    skip_special_tokens: bool | None = Field(None, description="leave control tokens out (default: they are spelled)")
