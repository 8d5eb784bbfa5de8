"""How the jobs of the last days went, and the metrics that Prometheus reads."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from dagmaster.model.redact import redact
from dagmaster.schemas.measures import (
    FailureMeasure,
    FailureMeasures,
    Measures,
    NodeMeasure,
    Period,
    Throughput,
    WorkflowMeasure,
)
from dagmaster.store import measures
from dagmaster.web.access import MACHINES, READERS
from dagmaster.web.prometheus import CONTENT_TYPE, render
from dagmaster.web.services import Conn, Given

router = APIRouter(tags=["metrics"])

T = TypeVar("T", bound=BaseModel)

Days = Annotated[int, Query(ge=1, le=measures.MAX_DAYS)]
Hours = Annotated[int, Query(ge=1, le=measures.MAX_HOURS)]
Minutes = Annotated[int, Query(ge=1, le=measures.MAX_BUCKET_MINUTES)]
Causes = Annotated[int, Query(ge=1, le=measures.MAX_CAUSES)]


@router.get("/api/v1/metrics/workflows", dependencies=[READERS])
async def workflow_metrics(conn: Conn, workflow_id: str | None = None, days: Days = 7) -> Measures[WorkflowMeasure]:
    """For each workflow: how many jobs, how they ended, how long they took, what they failed with."""
    return _reply(WorkflowMeasure, await measures.workflow_measures(conn, workflow_id, days), timedelta(days=days))


@router.get("/api/v1/metrics/workflows/{workflow_id}/nodes", dependencies=[READERS])
async def node_metrics(workflow_id: str, conn: Conn, days: Days = 7) -> Measures[NodeMeasure]:
    """The same for each node of a workflow; the children of a fan-out count for it."""
    return _reply(NodeMeasure, await measures.node_measures(conn, workflow_id, days), timedelta(days=days))


@router.get("/api/v1/metrics/failures", dependencies=[READERS])
async def failure_metrics(
    conn: Conn, workflow_id: str | None = None, days: Days = 7, limit: Causes = 20
) -> FailureMeasures:
    """What jobs failed with, the most frequent first, and how many failed in all."""
    rows = await measures.failure_measures(conn, workflow_id, days, limit)
    listed = _reply(FailureMeasure, rows, timedelta(days=days))
    return FailureMeasures(
        period=listed.period, items=listed.items, total=await measures.count_failures(conn, workflow_id, days)
    )


@router.get("/api/v1/metrics/throughput", dependencies=[READERS])
async def throughput_metrics(conn: Conn, hours: Hours = 24, bucket_minutes: Minutes = 60) -> Measures[Throughput]:
    """How many jobs ended in each stretch of time, and how long they took."""
    return _reply(Throughput, await measures.throughput(conn, hours, bucket_minutes), timedelta(hours=hours))


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, dependencies=[MACHINES]
)
async def prometheus_metrics(services: Given, conn: Conn) -> Response:
    """The whole fleet, whichever server is asked."""
    return Response(await render(conn, services.own_stats()), media_type=CONTENT_TYPE)


def _reply(kind: type[T], rows: list[dict[str, Any]], span: timedelta) -> Measures[T]:
    now = datetime.now(UTC)
    period = Period.model_validate({"from": now - span, "to": now})
    return Measures[T](period=period, items=[kind(**redact(row)) for row in rows])
