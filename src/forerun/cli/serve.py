"""`forerun serve`: the OpenAI-compatible server."""

import dataclasses

import typer

from forerun.cli.drafting import Drafting
from forerun.cli.options import ModelOptions, grouped
from forerun.cli.serve_options import Keys, Load, Reach, Running, server_config


@grouped
def serve(model: ModelOptions, drafting: Drafting, reach: Reach, keys: Keys, load: Load, running: Running) -> None:
    """Serve a model to OpenAI clients.

    SIGTERM or Ctrl-C finishes what runs, a second one ends at once, SIGHUP reads keys and certificate again.
    """
    from forerun.cli.load import engine_options, load_llm, model_name
    from forerun.server import logs
    from forerun.server.preparing import prepare

    config = server_config(reach, keys, load, running, model_name(model))
    speculation = drafting.chosen
    logs.configure(running.log_format, running.log_level)
    with prepare(config) as prepared:  # what can fail without a model fails before one is loaded
        options = dataclasses.replace(
            engine_options(model), max_num_seqs=load.max_num_seqs, prefill_slowdown=load.prefill_slowdown
        )
        llm = load_llm(model, speculation, options)

        from forerun.server.plan import log_plan
        from forerun.server.run import serve as run

        log_plan(llm, config, prepared, speculation)
        code = run(llm, config, prepared)
    if code:
        raise typer.Exit(code)
