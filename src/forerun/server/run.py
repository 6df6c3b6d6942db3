"""serve: run the application until a signal ends it."""

import uvicorn

from forerun.llm import LLM
from forerun.server.app import build_app
from forerun.server.config import ServerConfig


def serve(llm: LLM, config: ServerConfig) -> None:
    """Serve until SIGINT or SIGTERM; running requests may finish within the grace period."""
    app = build_app(llm, config)
    uvicorn.run(app, host=config.host, port=config.port, log_level="warning", lifespan="on", access_log=False)
