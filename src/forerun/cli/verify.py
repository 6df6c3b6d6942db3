"""`forerun verify`: proof, on this machine and with this model, that speed changes nothing that the model says."""

import contextlib
from dataclasses import replace
from typing import Annotated

import typer

from forerun.cli.console import print_json, progress, stdout
from forerun.cli.options import ModelOptions, grouped
from forerun.cli.render import note
from forerun.errors import UsageError

FAULT = "row_ulp"


@grouped
def verify(
    model: ModelOptions,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller set of settings, in less than 40 s.")] = False,
    self_test: Annotated[
        bool,
        typer.Option("--self-test", help="Inject an error of one ulp, which must be found."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Compare answers and logits under every setting that must not matter with plain decoding, bit for bit."""
    if self_test and model.backend != "cpu":
        raise UsageError("--self-test injects its error into the cpu backend: leave --backend out")

    from forerun.backends.base import Progress
    from forerun.backends.cores import default_threads
    from forerun.bench import verify as checks
    from forerun.cli.load import engine_options, load_llm, model_name
    from forerun.cli.verify_report import conclusion, document, duration, table

    options = replace(engine_options(model), fault=FAULT if self_test else None)
    threads = 1 if model.backend == "reference" else (default_threads() if model.threads is None else model.threads)
    with contextlib.ExitStack() as bars:

        def announce(plan: checks.Plan) -> Progress:
            settings = len(plan.settings) + len(plan.on_one_thread)
            note(
                f"{len(plan.cells)} prompts under {settings} settings against plain decoding, "
                f"about {duration(plan.estimate_s)}"
            )
            return bars.enter_context(progress("Comparing", unit="answers"))

        verdict = checks.verify(
            lambda threads: load_llm(replace(model, threads=threads), "off", options),
            options,
            threads,
            quick=quick or self_test,
            stop_at_first=self_test,
            announce=announce,
        )
    passed = verdict.is_equal if not self_test else verdict.first_difference is not None
    if json:
        print_json(document(verdict, model_name(model), passed, self_test))
    else:
        console = stdout()
        console.print(table(verdict))
        console.print(f"numerics {verdict.numerics_id}", markup=False)
        console.print(conclusion(verdict, model_name(model), self_test), markup=False, soft_wrap=True)
    return 0 if passed else 1
