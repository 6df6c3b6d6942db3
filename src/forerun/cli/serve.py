"""`forerun serve`: the OpenAI-compatible server."""

from typing import Annotated

import typer

from forerun.cli.drafting import Drafting
from forerun.cli.options import ModelOptions, grouped
from forerun.cli.render import note

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]


@grouped
def serve(model: ModelOptions, drafting: Drafting, host: Host = "127.0.0.1", port: Port = 8000) -> None:
    """Serve a model to OpenAI clients."""
    from forerun.cli.load import load_llm, model_name
    from forerun.server.config import ServerConfig
    from forerun.server.run import serve as run

    llm = load_llm(model, drafting.chosen)
    note(f"serving {model_name(model)} on http://{host}:{port}/v1")
    run(llm, ServerConfig(host=host, port=port, served_model=model_name(model)))
