"""`forerun demo`: the same answers with speculation off and on, their speeds, and whether they are identical."""

import tomllib
from importlib import resources
from typing import Annotated

import typer

from forerun.cli.console import print_json, stdout
from forerun.cli.generate import versions
from forerun.cli.options import ModelOptions, Speculation, grouped
from forerun.cli.render import DRAFT_STYLE, TextWriter
from forerun.errors import UsageError


@grouped
def demo(
    model: ModelOptions,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=2, help="Longest answer.")] = 128,
    speculation: Speculation = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Answer a few prompts with speculation off and on; exit code 1 if the answers differ."""
    if speculation == "off":
        raise UsageError("the demo compares speculation with none: name a drafter such as ngram, not off")

    from forerun.cli.comparison import Comparison
    from forerun.cli.comparison_report import document, table, verdict
    from forerun.cli.load import engine_options, load_llm, model_name

    llm = load_llm(model, speculation)
    console = stdout()
    writer = None if json else TextWriter(console, show_drafts=True)
    if writer is not None:
        where = "coloured like this" if console.is_terminal else "coloured on a terminal"
        writer.text(f"{model_name(model)}; draft tokens that the model accepted are ")
        writer.text(f"{where}\n", DRAFT_STYLE)
    comparison = Comparison(llm, engine_options(model), speculation, max_tokens)
    compared = comparison.run(read_prompts(), writer)
    identical = all(one.identical for one in compared)
    if json:
        about = {"model": model_name(model), "speculation": speculation}
        print_json(about | document(compared) | {"numerics_id": llm.numerics_id, "versions": versions()})
    else:
        console.print()
        console.print(table(compared))
        console.print(f"\n{verdict(compared)}", soft_wrap=True, markup=False)
    return 0 if identical else 1


def read_prompts() -> dict[str, str]:
    """The demo's prompts by name, in their order."""
    text = resources.files("forerun.cli").joinpath("demo_prompts.toml").read_text(encoding="utf-8")
    return {prompt["name"]: prompt["text"].strip() for prompt in tomllib.loads(text)["prompt"]}
