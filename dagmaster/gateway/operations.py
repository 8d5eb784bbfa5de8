"""Jobs, nodes and events as operators see them: without owners, hosts and code."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from pydantic import BaseModel

from dagmaster.errors import UnknownJob
from dagmaster.gateway.services import Services
from dagmaster.http.paging import to_page
from dagmaster.schemas.common import Page
from dagmaster.schemas.gateway import GatewayJob, GatewayNode
from dagmaster.store import gateway_status as store
from dagmaster.store.connect import Connection
from dagmaster.store.gateway_status import JobFilter

M = TypeVar("M", bound=BaseModel)
Row = Mapping[str, Any]

MAX_NODES = 5000
# User data, which may contain internal names.
SCRUBBED = ("error_message", "event_data", "result_data")


def reply(services: Services, model: type[M], row: Row) -> M:
    scrubbed = {name: services.operations.value(row[name]) for name in SCRUBBED if name in row}
    return model.model_validate({**row, **scrubbed})


def page_of(services: Services, model: type[M], rows: Sequence[Row], limit: int, offset: int) -> Page[M]:
    """The query returns one row more than `limit` if there are more."""
    return to_page([reply(services, model, row) for row in rows], limit, offset)


async def list_jobs(
    services: Services, conn: Connection, where: JobFilter, limit: int, offset: int
) -> Page[GatewayJob]:
    seconds = services.settings.orphan_threshold_seconds
    rows = await store.list_jobs(conn, where, orphan_seconds=seconds, limit=limit + 1, offset=offset)
    return page_of(services, GatewayJob, rows, limit, offset)


async def get_job(services: Services, conn: Connection, job_id: str) -> Row:
    if not (job_id.isascii() and job_id.isdecimal() and len(job_id) <= 19 and 0 < int(job_id) < 2**63):
        raise UnknownJob(f"there is no job {job_id[:40]!r}")
    return await store.get_job(conn, int(job_id), orphan_seconds=services.settings.orphan_threshold_seconds)


async def add_nodes(services: Services, conn: Connection, jobs: Sequence[GatewayJob]) -> None:
    """Add the nodes to each job, at most MAX_NODES in total."""
    if not jobs:
        return
    rows = await store.list_nodes(conn, [int(job.job_id) for job in jobs], limit=MAX_NODES)
    nodes_of = {job_id: list(nodes) for job_id, nodes in groupby(rows, key=lambda row: str(row["job_id"]))}
    for job in jobs:
        job.nodes = [reply(services, GatewayNode, row) for row in nodes_of.get(job.job_id, ())]
