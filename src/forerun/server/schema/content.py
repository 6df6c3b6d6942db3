"""Content of messages: a string, or parts, of which only text can be read."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from forerun.server.schema.refused import unsupported_part
from forerun.server.schema.strict import Schema


def _refuse_by_name(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    sentence = unsupported_part(kind) if isinstance(kind, str) else None
    if sentence is not None:
        raise PydanticCustomError("unsupported_content", "{reason}", {"reason": sentence})
    return part


class Text(Schema):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


TextPart = Annotated[Text, BeforeValidator(_refuse_by_name)]
Content = str | Annotated[list[TextPart], Field(min_length=1)]


class InputText(Schema):
    """A piece of a message's content, as /v1/responses names them."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = Field(None, description="of an earlier answer; has no effect")
    logprobs: list[Any] | None = Field(None, description="of an earlier answer; has no effect")


InputPart = Annotated[InputText, BeforeValidator(_refuse_by_name)]
InputContent = str | Annotated[list[InputPart], Field(min_length=1)]
