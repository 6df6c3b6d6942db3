"""seen_by: a snapshot of the dashboard as one tenant may see it.

With keys, a request's own numbers are for its tenant; of the others there are only sums, and in the block map the
blocks that they use, without saying which request uses them.
"""

from itertools import groupby
from typing import Any

from forerun.server.dashboard_snapshot import FIRST_OWNER, OTHERS
from forerun.server.service import Tenant


def seen_by(snapshot: dict[str, Any], tenant: Tenant) -> dict[str, Any]:
    """The document for a tenant; of a server without keys everybody sees all of it. Leaves `snapshot` as it is."""
    document = {name: value for name, value in snapshot.items() if name != "owners"}
    if not tenant.salt:
        return document
    own = {id for id, salt in snapshot["owners"].items() if salt == tenant.salt}
    blocks = document["blocks"]
    return document | {
        "requests": [request for request in document["requests"] if request["id"] in own],
        "ended": [request for request in document["ended"] if request["id"] in own],
        "blocks": blocks | {"map": _without_owners(blocks["map"], own)},
    }


def _without_owners(runs: list[tuple[int, int]], own: set[int]) -> list[tuple[int, int]]:
    """The map's runs, those of other tenants' requests as OTHERS."""
    told = [(state if state < FIRST_OWNER or state - FIRST_OWNER in own else OTHERS, length) for state, length in runs]
    return [(state, sum(length for _, length in some)) for state, some in groupby(told, key=lambda run: run[0])]
