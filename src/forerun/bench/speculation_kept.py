"""Cells of `bench speculation` that an earlier run has left in its document, so that a stopped run loses nothing.

A cell is taken over where model, arithmetic, machine, prompts, program and verification are the same: then it stands
beside newer ones as if one run had measured them all. A run measures only the cells that are missing, or that were
measured with other settings.
"""

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from forerun.bench.pairs import ratio_of
from forerun.bench.speculation_cells import ByDrafter, Cell, CellResult, SpeculationResults, SpeculationWish
from forerun.bench.speculation_report import FORMAT
from forerun.drafter_check import DrafterCheck
from forerun.errors import UsageError

_SAME = ("model", "numerics_id", "machine", "prompts")


def kept_results(path: Path, wish: SpeculationWish, prompts: str, about: Mapping[str, Any]) -> SpeculationResults:
    """The results in the document at `path`; none without a file.

    prompts, about  as speculation_report.document takes them

    Raises UsageError when the document is about something else, OSError when it cannot be read.
    """
    if not path.exists():
        return SpeculationResults([], {})
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        found, wanted = _identity(document), _identity({**about, "prompts": prompts, "format": FORMAT})
        methods = document["settings"]["config"]["verification"], wish.config.verification
        different = [name for name in found if found[name] != wanted[name]] + ["verification"] * (
            methods[0] != methods[1]
        )
        if not different:
            checks = {name: tuple(DrafterCheck(**one) for one in checks) for name, checks in document["checks"].items()}
            return SpeculationResults([_cell(one) for one in document["cells"]], {}, checks)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} holds no results of bench speculation: give --out another folder") from error
    raise UsageError(f"{path} holds results with another {different[0]}: give --out another folder")


def merged(kept: SpeculationResults, new: SpeculationResults) -> SpeculationResults:
    """All cells; of one that both have, the new one."""
    cells = {one.cell: one for one in (*kept.cells, *new.cells)}
    return SpeculationResults(list(cells.values()), new.skipped, {**kept.checks, **new.checks})


def is_measured(cell: Cell, wish: SpeculationWish, kept: Seq[CellResult]) -> bool:
    """Has the cell been measured as the wish asks for it?"""
    return any(
        one.cell == cell
        and len(one.speedup.pairs) >= wish.pairs
        and (one.new_tokens, one.requests) == (wish.new_tokens, wish.run_size(cell.batch))
        for one in kept
    )


def _identity(document: Mapping[str, Any]) -> dict[str, Any]:
    """What two documents must agree in, by the name that a message calls it."""
    return {
        "format": document["format"],
        **{name: document[name] for name in _SAME},
        "version": document["versions"].get("forerun"),
    }


def _cell(found: Mapping[str, Any]) -> CellResult:
    """The inverse of what speculation_report makes of a cell."""
    by_drafter = {
        name: ByDrafter(
            drafts=one["drafts"],
            drafted=one["drafted"],
            accepted=one["accepted"],
            drafted_at=tuple(one["drafted_at"]),
            accepted_at=tuple(one["accepted_at"]),
            errors=one["errors"],
            share=one["share"],
        )
        for name, one in found["by_drafter"].items()
    }
    return CellResult(
        cell=Cell(found["drafter"], found["category"], found["batch"], found["temperature"]),
        speedup=ratio_of(found["speedup"]["pairs"]),
        whole=ratio_of(found["whole"]["pairs"]),
        plain_tokens_per_s=found["plain_tokens_per_s"],
        tokens_per_s=found["tokens_per_s"],
        tokens_per_s_pairs=tuple((plain, drafted) for plain, drafted in found["tokens_per_s_pairs"]),
        accepted_len=found["accepted_len"],
        drafted=found["drafted"],
        accepted=found["accepted"],
        drafted_at=tuple(found["drafted_at"]),
        accepted_at=tuple(found["accepted_at"]),
        draft_share=found["draft_share"],
        by_drafter=by_drafter,
        is_equal=found["equal"],
        difference=found["difference"],
        new_tokens=found["new_tokens"],
        requests=found["requests"],
    )
