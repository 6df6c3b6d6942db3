"""`forerun bench layer-skip`: finds the sub-layers that a model leaves out when it drafts for itself."""

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.options import ModelOptions, grouped


@grouped
def layer_skip(
    model: ModelOptions,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The profile; without it, where the drafter looks.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the model's own text that are measured.")] = 512,
    measurements: Annotated[int, typer.Option(help="Sets of sub-layers that are tried.")] = 400,
    seconds: Annotated[float, typer.Option(help="End the search after this time.")] = 600.0,
    seed: Annotated[int, typer.Option(help="Of the random part of the search.")] = 0,
) -> None:
    """Search for layers to leave out when the model drafts for itself; the drafter layer-skip reads the result."""
    from forerun.bench.layer_skip import SkipWish, search_profile
    from forerun.cli.console import progress, stdout
    from forerun.cli.load import engine_options, load_llm
    from forerun.models.aliases import cache_folder
    from forerun.speculation.drafting.skip_profile import default_path, write_profile

    wish = SkipWish(tokens, seed, measurements, seconds)
    options = engine_options(model)
    llm = load_llm(model, "off", options)
    with progress("Searching", unit="sets") as report:
        profile = search_profile(llm, wish, options, report)
    path = out if out is not None else default_path(cache_folder() / "drafters", profile.model)
    write_profile(profile, path)
    console = stdout()
    pays = "" if profile.speedup > 1 else " (it does not pay)"
    for line in (
        f"left out          {len(profile.skip)} of {2 * profile.model.num_layers} sub-layers: {' '.join(profile.skip)}",
        f"alpha             {profile.same_token:.3f} greedy, {profile.overlap:.3f} sampled",
        f"cost of a draft   {profile.cost:.3f} of a whole pass",
        f"expected speed-up {profile.speedup:.2f} with drafts of {profile.depth}{pays}",
        f"wrote {path}",
    ):
        console.print(line, markup=False, soft_wrap=True)
