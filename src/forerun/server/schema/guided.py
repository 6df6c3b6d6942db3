"""What the text of an answer must be: the forms of `response_format`, and forerun's own `guided_` options."""

from typing import Annotated, Any, Literal

from pydantic import Field

from forerun.errors import RequestError
from forerun.grammar.source import Grammar
from forerun.server.schema.strict import Schema

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class PlainFormat(Schema):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Schema):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Schema):
    """A JSON schema. It is always kept exactly, `strict` or not; what of it cannot be kept is refused."""

    name: Name
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Schema):
    """JSON that is valid under a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[PlainFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class FlatSchemaFormat(NamedSchema):
    """The same as /v1/responses writes it."""

    type: Literal["json_schema"]


TextFormat = Annotated[PlainFormat | JsonObjectFormat | FlatSchemaFormat, Field(discriminator="type")]


class GuidedOptions(Schema):
    """At most one of these may be given, and none beside a response_format that asks for JSON."""

    guided_regex: str | None = Field(None, description="a regular expression that the whole answer matches")
    guided_grammar: str | None = Field(None, description="a grammar in llguidance's dialect of lark; begins at start")
    guided_choice: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="the answer is one of these texts"
    )


def grammar_of(
    options: GuidedOptions, format: PlainFormat | JsonObjectFormat | JsonSchemaFormat | None
) -> Grammar | None:
    """What the options ask of the text, None for nothing. Raises RequestError when they ask for two things."""
    asked: list[Grammar] = []
    if isinstance(format, JsonObjectFormat):
        asked.append(Grammar.json_object("response_format"))
    if isinstance(format, JsonSchemaFormat):
        asked.append(Grammar.json_schema(format.json_schema.json_schema, "response_format"))
    if options.guided_regex is not None:
        asked.append(Grammar.regex(options.guided_regex, "guided_regex"))
    if options.guided_grammar is not None:
        asked.append(Grammar.lark(options.guided_grammar, "guided_grammar"))
    if options.guided_choice is not None:
        asked.append(Grammar.choice(options.guided_choice, "guided_choice"))
    if len(asked) > 1:
        first, second = asked[0].param, asked[1].param
        raise RequestError(f"{first} and {second} both say what the answer must be: pass one", param=second)
    return asked[0] if asked else None
