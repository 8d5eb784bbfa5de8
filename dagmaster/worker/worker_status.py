"""The statistics in a worker's heartbeat."""

import resource
from typing import Any

from dagmaster.worker.processes.children import Children
from dagmaster.worker.slots import Slots
from dagmaster.worker.unconfirmed_claims import UnconfirmedClaims

KIB = 1024


def heartbeat_stats(slots: Slots, children: Children, unconfirmed: UnconfirmedClaims) -> dict[str, Any]:
    return {
        "running": len(slots.running),
        "stuck": sorted(slots.stuck),
        "unconfirmed": len(unconfirmed),
        "processes": len(children.pids),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
    }
