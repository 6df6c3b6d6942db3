"""What a comparison came to: a table, a sentence, a JSON document."""

from typing import Any

from rich.table import Table

from forerun.cli.comparison import SETTINGS, Compared


def total_speedup(compared: list[Compared]) -> float:
    """Of decoding all answers one after the other."""
    off, on = (sum(one.decode_s(setting) * one.num_tokens for one in compared) for setting in SETTINGS)
    return off / on


def table(compared: list[Compared]) -> Table:
    """A row per prompt, and one for all together."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("PROMPT", no_wrap=True)
    for heading in ("TOKENS", "TOKENS/S OFF", "ON", "ACCEPTED LENGTH", "SPEED-UP"):
        made.add_column(heading, justify="right")
    made.add_column("IDENTICAL")
    for one in compared:
        off, on = (f"{1 / one.decode_s(setting):.1f}" for setting in SETTINGS)
        made.add_row(
            one.name,
            str(one.num_tokens),
            off,
            on,
            f"{one.mean_accepted_len:.2f}",
            f"{one.speedup:.2f}x",
            "yes" if one.identical else "NO",
        )
    made.add_row("all", str(_total(compared)), "", "", "", f"{total_speedup(compared):.2f}x", "")
    return made


def verdict(compared: list[Compared]) -> str:
    """One sentence: are the answers identical, and if not, where do they part."""
    different = [one for one in compared if not one.identical]
    if not different:
        return (
            f"Identical: with speculation off and on all {_total(compared)} tokens are the same, "
            "and so is every bit of the fp32 logits they were drawn from."
        )
    first = different[0]
    at = first.first_difference
    where = "in a timed run" if at is None else f"from token {at + 1} on"
    names = ", ".join(one.name for one in different)
    return f"DIFFERENT: {names} ({first.name} {where}). This is a bug: report it with the output of `forerun info`."


def document(compared: list[Compared]) -> dict[str, Any]:
    """The comparison as JSON values; speeds are of decoding, prefill apart."""
    return {
        "prompts": [_entry(one) for one in compared],
        "speedup": total_speedup(compared),
        "identical": all(one.identical for one in compared),
    }


def _total(compared: list[Compared]) -> int:
    return sum(one.num_tokens for one in compared)


def _entry(one: Compared) -> dict[str, Any]:
    stats = one.shown["on"].stats
    return {
        "name": one.name,
        "text": one.shown["on"].text,
        "prompt_tokens": stats.num_prompt_tokens,
        "tokens": one.num_tokens,
        "tokens_per_s": {setting: 1 / one.decode_s(setting) for setting in SETTINGS},
        "timed_runs": len(one.timed["off"]),
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "mean_accepted_len": one.mean_accepted_len,
        "speedup": one.speedup,
        "identical": one.identical,
    }
