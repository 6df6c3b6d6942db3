"""`forerun generate`: answer or continue one prompt."""

import math
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from forerun import __version__
from forerun.cli.console import print_json, stdout
from forerun.cli.drafting import Drafting
from forerun.cli.options import Display, ModelOptions, Sampling, SystemMessage, grouped
from forerun.cli.render import Answer, TextWriter, draft_summary, failure, note, summary
from forerun.errors import ForerunError, RequestError, UsageError
from forerun.sequence import TokenLogprob

INTERRUPTED = 130  # the exit code after Ctrl-C


@dataclass(frozen=True)
class Form:
    """What form the answer takes."""

    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False
    n: Annotated[int, typer.Option("--n", help="Number of answers.")] = 1
    logprobs: Annotated[
        int | None, typer.Option(metavar="N", help="Log-probabilities, with the N likeliest tokens; needs --json.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False


Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help='The text; "-" reads standard input.')]


@grouped
def generate(
    prompt: Prompt,
    model: ModelOptions,
    sampling: Sampling,
    form: Form,
    drafting: Drafting,
    display: Display,
    system: SystemMessage = None,
) -> int:
    """Answer a prompt, or continue a text with --raw."""
    text = read_prompt(prompt)
    params = sampling.params(n=form.n, logprobs=form.logprobs)
    if form.logprobs is not None and not form.json:
        raise UsageError("--logprobs are shown in the JSON document only: add --json")
    if form.raw and system is not None:
        raise UsageError("--system is part of the chat template, which --raw leaves out: give only one of them")

    from forerun.cli.answer import generate_answers, prompt_ids
    from forerun.cli.load import load_llm, model_name

    llm = load_llm(model, drafting.chosen)
    if not (form.raw or llm.has_chat_template or display.quiet):
        note("this model has no chat template, so the text is continued as it is")
    ids = prompt_ids(llm, text, system, form.raw)
    writer = None if form.json else TextWriter(stdout(), display.show_drafts)
    answers = generate_answers(llm, ids, params, writer)
    stats = llm.engine.speculator.stats
    drafters = stats.by_drafter
    if form.json:
        print_json(
            {
                "model": model_name(model),
                "prompt_tokens": len(ids),
                "choices": [answer_document(answer, llm.tokenizer.token_bytes) for answer in answers],
                "drafters": {name: asdict(one) for name, one in drafters.items()},
                "speculation": {
                    "bonus": stats.bonus,
                    "verify_s": stats.verify_s,
                    "decisions": dict(stats.decisions),
                },
                "numerics_id": llm.numerics_id,
                "versions": versions(),
            }
        )
    return conclude(answers, display.quiet, draft_summary(drafters))


def read_prompt(prompt: str) -> str:
    """The prompt, from standard input for "-", there without its last line end. Raises RequestError when empty."""
    if prompt == "-":
        try:
            prompt = sys.stdin.read().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not {error.encoding} text: pass text") from None
    if not prompt:
        raise RequestError("the prompt is empty: give some text", param="prompt")
    return prompt


def conclude(answers: list[Answer], quiet: bool, drafts: str | None = None) -> int:
    """Print a summary of each answer and of the drafts; returns the exit code. Raises ForerunError when one failed."""
    choices = [answer.choice for answer in answers if answer.choice is not None]
    if not quiet:
        for choice in choices:
            print(summary(choice.stats), file=sys.stderr)
        if choices and drafts:
            print(drafts, file=sys.stderr)
        if not choices:
            note("interrupted")
    problems = [problem for choice in choices if (problem := failure(choice)) is not None]
    if problems:
        raise ForerunError(f"the generation failed: {problems[0]}")
    return 0 if choices else INTERRUPTED


# ---- the JSON document ----


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    return {"forerun": __version__, "python": platform.python_version()}


def answer_document(answer: Answer, token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    """An answer as JSON values; times are seconds. Ctrl-C leaves text and ids, and nulls."""
    document: dict[str, Any] = {"text": answer.text, "token_ids": list(answer.token_ids)}
    choice = answer.choice
    if choice is None:
        return document | {"finish_reason": "aborted", "logprobs": None, "seed": None, "stats": None}
    document |= {
        "finish_reason": choice.finish_reason.value,
        "logprobs": None if choice.logprobs is None else [_logprob(entry, token_bytes) for entry in choice.logprobs],
        "seed": choice.seed,
        "stats": asdict(choice.stats) | {"mean_accepted_len": choice.stats.mean_accepted_len},
    }
    return document | ({"error": choice.error} if choice.error else {})


def _logprob(entry: TokenLogprob, token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        text = token_bytes(token).decode("utf-8", errors="replace")
        return {"token": token, "text": text, "logprob": logprob if math.isfinite(logprob) else None}

    return one(entry.token, entry.logprob) | {"top": [one(token, logprob) for token, logprob in entry.top]}
