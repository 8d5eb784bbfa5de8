"""Jobs, nodes and events as operators see them: without owners, hosts and code."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from dagmaster.errors import UnknownJob
from dagmaster.gateway.services import Services
from dagmaster.schemas.gateway import GatewayEvent, GatewayJob, GatewayJobDetail, GatewayNode
from dagmaster.store import gateway_status as store
from dagmaster.store.connect import Connection

Row = Mapping[str, Any]

MAX_NODES = 5000


def job_reply(services: Services, row: Row) -> GatewayJob:
    return GatewayJob.model_validate(_scrubbed(services, row))


def job_detail(services: Services, row: Row) -> GatewayJobDetail:
    return GatewayJobDetail.model_validate(_scrubbed(services, row))


def node_reply(services: Services, row: Row) -> GatewayNode:
    return GatewayNode.model_validate(_scrubbed(services, row))


def event_reply(services: Services, row: Row) -> GatewayEvent:
    return GatewayEvent.model_validate(_scrubbed(services, row))


async def add_nodes(services: Services, conn: Connection, jobs: Sequence[GatewayJob]) -> None:
    """Add the nodes to each job, at most MAX_NODES in total."""
    if not jobs:
        return
    rows = await store.list_nodes(conn, [int(job.job_id) for job in jobs], limit=MAX_NODES)
    nodes_of = {job_id: list(nodes) for job_id, nodes in groupby(rows, key=lambda row: str(row["job_id"]))}
    for job in jobs:
        job.nodes = [node_reply(services, row) for row in nodes_of.get(job.job_id, ())]


def as_job_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and 0 < int(text) < 2**63):
        raise UnknownJob(f"there is no job {text[:40]!r}")
    return int(text)


def _scrubbed(services: Services, row: Row) -> dict[str, Any]:
    """User data may contain internal names; column names never do."""
    return {
        name: services.operations.value(value) if name in ("error_message", "event_data", "result_data") else value
        for name, value in row.items()
    }
