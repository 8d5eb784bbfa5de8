"""The health endpoints of a worker, for probes and operators."""

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from dagmaster.worker.worker import Worker

HEALTHY, DEGRADED, UNHEALTHY = "healthy", "degraded", "unhealthy"


def health_of(worker: Worker) -> dict[str, Any]:
    slots = worker.slots
    return {
        "status": _status(worker),
        "worker_id": worker.worker_id or None,
        "is_connected": worker.is_connected,
        "wanted": "stop" if worker.is_stopping else worker.desired_state,
        "queues": list(worker.options.queues),
        "handlers": sorted(worker.handlers),
        "concurrency": slots.count,
        "free_slots": worker.free_slots,
        "running": sorted(slots.running),
        "stuck": sorted(slots.stuck),
        "unconfirmed": list(worker.unconfirmed),
        "completed": worker.completed,
        "failed": worker.failed,
    }


def _status(worker: Worker) -> str:
    """Unhealthy when all slots are stuck: only a restart helps."""
    if len(worker.slots.stuck) >= worker.slots.count:
        return UNHEALTHY
    is_well = worker.is_connected and not worker.slots.stuck and not worker.unconfirmed.last_long
    return HEALTHY if is_well else DEGRADED


def health_app(worker: Worker) -> Starlette:
    """`/livez` fails when the process should be restarted, `/readyz` when it takes no tasks."""

    async def health(request: Request) -> JSONResponse:
        report = health_of(worker)
        return JSONResponse(report, 503 if report["status"] == UNHEALTHY else 200)

    async def livez(request: Request) -> JSONResponse:
        is_alive = _status(worker) != UNHEALTHY
        return JSONResponse({"status": "alive" if is_alive else UNHEALTHY}, 200 if is_alive else 503)

    async def readyz(request: Request) -> JSONResponse:
        is_ready = worker.is_connected and worker.is_taking and _status(worker) != UNHEALTHY
        return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)

    return Starlette(routes=[Route("/health", health), Route("/livez", livez), Route("/readyz", readyz)])
