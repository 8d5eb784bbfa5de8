"""Statistics of recent jobs, and metrics for Prometheus."""

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
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(tags=["metrics"])

T = TypeVar("T", bound=BaseModel)

Days = Annotated[int, Query(ge=1, le=measures.MAX_DAYS)]
Hours = Annotated[int, Query(ge=1, le=measures.MAX_HOURS)]
Minutes = Annotated[int, Query(ge=1, le=measures.MAX_BUCKET_MINUTES)]
Causes = Annotated[int, Query(ge=1, le=measures.MAX_CAUSES)]


@router.get("/api/v1/metrics/workflows", dependencies=[READERS])
async def workflow_metrics(conn: Conn, workflow_id: str | None = None, days: Days = 7) -> Measures[WorkflowMeasure]:
    """Get job counts, outcomes, durations and errors per workflow."""
    return _reply(WorkflowMeasure, await measures.workflow_measures(conn, workflow_id, days), timedelta(days=days))


@router.get("/api/v1/metrics/workflows/{workflow_id}/nodes", dependencies=[READERS])
async def node_metrics(workflow_id: str, conn: Conn, days: Days = 7) -> Measures[NodeMeasure]:
    """Get the same figures per node of a workflow; a fan-out includes its children."""
    return _reply(NodeMeasure, await measures.node_measures(conn, workflow_id, days), timedelta(days=days))


@router.get("/api/v1/metrics/failures", dependencies=[READERS])
async def failure_metrics(
    conn: Conn, workflow_id: str | None = None, days: Days = 7, limit: Causes = 20
) -> FailureMeasures:
    """List the causes of job failures, most frequent first, and the total."""
    rows = await measures.failure_measures(conn, workflow_id, days, limit)
    listed = _reply(FailureMeasure, rows, timedelta(days=days))
    return FailureMeasures(
        period=listed.period, items=listed.items, total=await measures.count_failures(conn, workflow_id, days)
    )


@router.get("/api/v1/metrics/throughput", dependencies=[READERS])
async def throughput_metrics(conn: Conn, hours: Hours = 24, bucket_minutes: Minutes = 60) -> Measures[Throughput]:
    """Get the number and durations of ended jobs per time bucket."""
    return _reply(Throughput, await measures.throughput(conn, hours, bucket_minutes), timedelta(hours=hours))


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, dependencies=[MACHINES]
)
async def prometheus_metrics(services: ServicesDep, conn: Conn) -> Response:
    """Metrics of the whole fleet; every server returns the same."""
    return Response(await render(conn, services.own_stats()), media_type=CONTENT_TYPE)


def _reply(kind: type[T], rows: list[dict[str, Any]], span: timedelta) -> Measures[T]:
    now = datetime.now(UTC)
    period = Period.model_validate({"from": now - span, "to": now})
    return Measures[T](period=period, items=[kind(**redact(row)) for row in rows])
