"""The plan: what the server holds, computes with and allows, told once at the start."""

import logging
from collections.abc import Mapping
from typing import Any

from forerun import __version__
from forerun.config import SpeculationConfig
from forerun.llm import LLM
from forerun.machine import available_memory
from forerun.server.config import ServerConfig
from forerun.server.hosts import LOOPBACK
from forerun.server.logs import fields
from forerun.server.preparing import Prepared

log = logging.getLogger("forerun.plan")


def log_plan(llm: LLM, config: ServerConfig, prepared: Prepared, speculation: SpeculationConfig) -> None:
    """Log the plan, one line for each part, and warn where the server is open to the network."""
    for part, values in make_plan(llm, config, prepared, speculation).items():
        log.info("plan: %s", part, extra=fields(**values))
    if config.host not in LOOPBACK and not prepared.access.num_keys:
        log.warning("anybody who reaches %s may use this server: give it an API key", prepared.url(config.host))


def make_plan(
    llm: LLM, config: ServerConfig, prepared: Prepared, speculation: SpeculationConfig
) -> Mapping[str, dict[str, Any]]:
    """Parts of the plan by name. Sizes are in megabytes."""
    memory, layout = llm.backend.memory(), llm.kv_layout
    own = layout.stacks[0].bytes_per_token * layout.num_slots  # the target's stack comes first
    free = available_memory()
    limits = {f"key_{name}": value for name, value in vars(config.keys.limits).items()}
    engine = llm.engine.scheduler.config
    return {
        "model": {
            "name": config.served_model,
            "file": llm.opened.name,
            "forerun": __version__,
            "numerics": llm.numerics_id,
        },
        "memory": {
            "weights_mb": _mb(memory.weights),
            "kv_mb": _mb(own),
            "drafts_mb": _mb(memory.drafts),
            "drafts_kv_mb": _mb(layout.total_bytes - own),
            "workspace_mb": _mb(memory.workspace),
            "left_mb": None if free is None else _mb(free),
            "kv_tokens": layout.num_slots,
            "kv_format": layout.stacks[0].codec,
            "context_tokens": llm.max_model_len,
        },
        "compute": {
            "backend": llm.backend.name,
            "threads": getattr(llm.backend, "threads", 1),  # numpy's are its own
            "isa": llm.numerics_id.partition("/")[0],
        },
        "speculation": {
            "chosen": speculation.drafter,
            "drafters": llm.engine.speculator.drafter_name,
            "by_request": "+".join(drafter.name for drafter in llm.engine.speculator.guides) or "none",
            "verification": speculation.verification,
            "lossy": speculation.lossy,
        },
        "limits": {
            "running": engine.max_num_seqs,
            "waiting": config.max_waiting,
            "prefill_slowdown": engine.prefill_slowdown,
            "body_mb": _mb(config.max_body_bytes),
            "receive_timeout_s": config.receive_timeout_s,
            "grace_s": config.shutdown_grace_s,
            **limits,
        },
        "address": {
            "url": f"{prepared.url(config.host)}/v1",
            "api_keys": prepared.access.num_keys,
            "cors": ",".join(config.cors_origins) or "off",
        },
    }


def _mb(num_bytes: int) -> float:
    return round(num_bytes / 1e6, 1)
