"""Tools that a model may call, which of them it shall call, and its calls in the conversation."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from forerun.server.schema.guided import Name
from forerun.server.schema.refused import unsupported_tool
from forerun.server.schema.strict import Schema


def _refuse_by_name(kind: Any) -> Any:
    if isinstance(kind, str) and kind != "function":
        raise PydanticCustomError("unsupported_value", "{reason}", {"reason": unsupported_tool(kind)})
    return kind


OfFunction = Annotated[Literal["function"], BeforeValidator(_refuse_by_name)]


class Function(Schema):
    """A function that the client runs."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of its arguments, an object; none: {}")
    strict: bool | None = Field(None, description="arguments are always valid, also where the model may choose to call")


class Tool(Schema):
    """Functions are the only tools."""

    type: OfFunction
    function: Function


class FunctionName(Schema):
    """One of the functions."""

    name: str


class NamedTool(Schema):
    """Call this one."""

    type: OfFunction
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(Schema):
    """A call as the model made it. arguments  JSON text"""

    name: str
    arguments: str


class ToolCall(Schema):
    """A call in the conversation."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
