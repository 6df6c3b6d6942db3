"""Options that say how drafts are made and verified, as two groups, and the SpeculationConfig that they amount to.

DraftOptions  everything but who drafts, for commands that name the drafters themselves
Drafting      the same with --speculation
"""

import dataclasses
from typing import Annotated

import typer

from forerun.cli.options import Speculation
from forerun.config import SpeculationConfig
from forerun.errors import UsageError

_PANEL = "Speculation"
DRAFT_MODEL = "draft-model"  # the drafter that --draft-model adds

Value = bool | int | float | str


def parse_draft_options(entries: list[str] | None) -> dict[str, Value]:
    """Drafters' options from "KEY=VALUE" entries: true, false, whole numbers, numbers, else text. Raises UsageError."""
    options: dict[str, Value] = {}
    for entry in entries or []:
        key, equals, text = entry.partition("=")
        owner, dot, option = key.strip().rpartition(".")
        name = owner + dot + option.replace("-", "_")
        if not equals or not option:
            raise UsageError(f"draft option {entry!r} is not KEY=VALUE, such as ngram.max_n=5")
        if name in options:
            raise UsageError(f"draft option {name} is given twice: keep one of them")
        options[name] = _typed(text.strip())
    return options


def _typed(text: str) -> Value:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclasses.dataclass(frozen=True)
class DraftOptions:
    """How drafts are made and verified."""

    draft_model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", rich_help_panel=_PANEL, help=f"Adds the drafter {DRAFT_MODEL} with this model."),
    ] = None
    draft_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[DRAFTER.]KEY=VALUE", rich_help_panel=_PANEL, help="An option of drafters; may be repeated."
        ),
    ] = None
    max_draft: Annotated[int | None, typer.Option(metavar="N", rich_help_panel=_PANEL, help="Longest draft.")] = None
    verification: Annotated[
        str,
        typer.Option(
            metavar="coupled|rejection|block|typical",
            rich_help_panel=_PANEL,
            help="The same tokens; the same distribution (rejection, block); or neither (typical, needs --lossy).",
        ),
    ] = "coupled"
    lossy: Annotated[
        bool, typer.Option("--lossy", rich_help_panel=_PANEL, help="Permit drafts to change what the model says.")
    ] = False

    def config(self, speculation: str) -> SpeculationConfig:
        """The configuration of these drafters with these options. Raises UsageError."""
        from forerun.speculation.setup import drafter_names  # numpy comes with it

        options = parse_draft_options(self.draft_option)
        if self.draft_model is not None:
            options[f"{DRAFT_MODEL}.model"] = self.draft_model
        if speculation == "off" and (options or self.max_draft is not None):
            raise UsageError("nothing drafts with --speculation off: leave out the options for drafts")
        if speculation == "off" and self.verification != "coupled":
            raise UsageError(
                f"nothing is verified with --speculation off: leave out --verification {self.verification}"
            )
        if self.draft_model is not None and DRAFT_MODEL not in drafter_names(speculation):
            speculation = f"{speculation}+{DRAFT_MODEL}"
        drafter_names(speculation)  # raises
        return SpeculationConfig(
            speculation,
            max_depth=self.max_draft,
            options=options,
            verification=self.verification,
            lossy=self.lossy,
        )


@dataclasses.dataclass(frozen=True)
class Drafting(DraftOptions):
    """Who drafts, and how drafts are made and verified."""

    speculation: Speculation = "auto"

    @property
    def chosen(self) -> SpeculationConfig:
        """The configuration that the options amount to. Raises UsageError."""
        return self.config(self.speculation)
