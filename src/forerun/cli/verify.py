"""`forerun verify`: proof, on this machine and with this model, that speed changes nothing that the model says."""

import contextlib
from dataclasses import replace
from typing import Annotated

import typer

from forerun.cli.console import print_json, progress, stdout
from forerun.cli.drafting import Drafting
from forerun.cli.options import ModelOptions, grouped
from forerun.cli.render import note
from forerun.config import SpeculationConfig
from forerun.errors import UsageError
from forerun.models.progress import Progress

FAULT = "row_ulp"


class _Bar:
    """Progress of the comparison; closed while a model is loaded, since a terminal shows one bar at a time."""

    def __init__(self) -> None:
        self._opened = contextlib.ExitStack()
        self._report: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._report is None:
            self._report = self._opened.enter_context(progress("Comparing", unit="answers"))
        self._report(done, total)

    def close(self) -> None:
        """Take the bar away; the next call brings it back."""
        self._opened.close()
        self._report = None


def _own(drafting: Drafting) -> SpeculationConfig | None:
    """The drafter that the options add, if any. Raises UsageError."""
    if drafting.verification != "coupled" or drafting.lossy:
        raise UsageError(
            "verify compares bit for bit, which --verification coupled alone promises: leave the other out"
        )
    chosen = drafting.chosen
    return None if chosen in (SpeculationConfig(), SpeculationConfig("off")) else chosen


@grouped
def verify(
    model: ModelOptions,
    drafting: Drafting,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller set of settings, in less than 40 s.")] = False,
    self_test: Annotated[
        bool,
        typer.Option("--self-test", help="Inject an error of one ulp, which must be found."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Compare answers and logits under every setting that must not matter with plain decoding, bit for bit.

    Drafters that need no model are always part of it; one that --speculation or --draft-model names joins them.
    """
    if self_test and model.backend != "cpu":
        raise UsageError("--self-test injects its error into the cpu backend: leave --backend out")
    own = _own(drafting)

    from forerun.backends.cores import default_threads
    from forerun.bench import verify as checks
    from forerun.cli.load import engine_options, load_llm, model_name
    from forerun.cli.verify_report import conclusion, document, duration, table
    from forerun.llm import LLM

    options = replace(engine_options(model), fault=FAULT if self_test else None)
    threads = 1 if model.backend == "reference" else (default_threads() if model.threads is None else model.threads)
    bar = _Bar()

    def load(threads: int) -> LLM:
        bar.close()
        return load_llm(replace(model, threads=threads), "off", options)

    def announce(plan: checks.Plan) -> Progress:
        settings = len(plan.settings) + len(plan.on_one_thread)
        time = duration(plan.estimate_s)
        note(f"{len(plan.cells)} prompts under {settings} settings against plain decoding, about {time}")
        return bar

    with contextlib.closing(bar):
        verdict = checks.verify(
            load,
            options,
            threads,
            quick=quick or self_test,
            stop_at_first=self_test,
            announce=announce,
            speculation=own,
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
