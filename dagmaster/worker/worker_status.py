"""How a worker is: what its heartbeat tells, and what it answers when it is asked for its health."""

import resource
from typing import Any

from dagmaster.worker.processes.children import Children
from dagmaster.worker.slots import Slots
from dagmaster.worker.unconfirmed_claims import UnconfirmedClaims

KIB = 1024


def standing_stats(slots: Slots, children: Children, unconfirmed: UnconfirmedClaims) -> dict[str, Any]:
    return {
        "running": len(slots.held),
        "stuck": sorted(slots.stuck),
        "unconfirmed": len(unconfirmed),
        "processes": len(children.pids),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
    }
