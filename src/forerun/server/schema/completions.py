"""The body of POST /v1/completions."""

from typing import Annotated

from pydantic import Field

from forerun.errors import RequestError
from forerun.generation import Prompt
from forerun.server.schema.options import GenerationOptions

_Ids = Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1)]


class CompletionRequest(GenerationOptions):
    """Continue texts."""

    prompt: str | Annotated[list[str], Field(min_length=1)] | _Ids | Annotated[list[_Ids], Field(min_length=1)] = Field(
        description="a text, token ids, or a list of either; each gets n choices"
    )
    suffix: str | None = Field(None, description="text behind the gap, for models that fill in the middle")
    echo: bool | None = Field(None, description="the answer begins with the prompt; with logprobs it is scored too")
    max_tokens: int | None = Field(None, ge=0, le=2**31 - 1, description="default 16; 0 only with echo")
    logprobs: int | None = Field(None, ge=0, le=20, description="alternatives beside each token's log-probability")

    @property
    def prompts(self) -> list[Prompt]:
        """Every prompt."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        return [prompt] if isinstance(prompt[0], int) else list(prompt)

    def check(self) -> None:
        """Raise RequestError for options that contradict each other."""
        self.check_stream()
        if self.max_tokens == 0 and not self.echo:
            raise RequestError("max_tokens 0 asks for nothing: it needs echo", param="max_tokens")
        if self.suffix is not None and self.echo:
            raise RequestError("echo cannot show a prompt with a gap: leave out echo or suffix", param="echo")
        if self.suffix is not None and not all(isinstance(prompt, str) for prompt in self.prompts):
            raise RequestError("suffix needs a prompt that is text", param="suffix")
