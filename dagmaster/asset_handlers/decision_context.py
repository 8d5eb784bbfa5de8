"""Shared parts of the decision handlers: the actor, the workflows that a decision starts, and failures."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.contracts import known_contracts, open_rules
from dagmaster.errors import Conflict, Invalid, NotFound, UnknownWorkflow
from dagmaster.handlers import registry
from dagmaster.handlers.contract import HandlerContext, Permanent, Retry, pool_of
from dagmaster.ids import JobId
from dagmaster.model.workflow import Workflow
from dagmaster.service.context import ServiceContext
from dagmaster.service.definitions import Definitions
from dagmaster.settings import Settings, load_settings
from dagmaster.store.assets import StaleVersion
from dagmaster.store.connect import Connection
from dagmaster.store.jobs import get_job_head
from dagmaster.store.workflows import find_newest_definition

SOURCE_APP = "worker"


class VersionParams(BaseModel):
    """`reason` is recorded in the history of the asset."""

    model_config = ConfigDict(extra="forbid")

    asset_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    version_ordinal: Annotated[int, Field(ge=0)]
    reason: Annotated[str, Field(max_length=2000)] | None = None


@asynccontextmanager
async def decision_context(ctx: HandlerContext) -> AsyncIterator[ServiceContext]:
    """Decide on behalf of the job's submitter. An illegal decision fails the job at once."""
    async with pool_of(ctx).store_connection() as conn:
        try:
            job = await get_job_head(conn, JobId(ctx.job_id))
            actor = job["submitted_by"] or f"job {ctx.job_id}"
            yield ServiceContext(conn, load_settings(), source_app=SOURCE_APP, actor=actor)
        except StaleVersion as error:
            raise Retry("the version is being changed by others") from error
        except (Conflict, Invalid, NotFound) as error:
            raise Permanent(str(error)) from error


async def known_definitions(conn: Connection, settings: Settings) -> Definitions:
    """The workflows of this machine. If the export workflow is missing, its last pinned definition is used."""
    contracts = await known_contracts(conn, registry)
    catalog = Catalog(settings.workflows_dir, queues=open_rules(contracts, settings), must_exist=False)
    newest = await find_newest_definition(conn, settings.export_workflow)

    def find(name: str) -> Workflow:
        try:
            return catalog.get(name)
        except UnknownWorkflow:
            if name != settings.export_workflow or newest is None:
                raise
            return Workflow.model_validate_json(newest)

    return Definitions(settings, contracts, find)
