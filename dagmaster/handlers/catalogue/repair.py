"""Rebuild catalogue entries from versions and files, or repair wrong ones."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field

from dagmaster.errors import Invalid, NotFound
from dagmaster.geo.stac.differences import Fault, find_faults
from dagmaster.handlers.catalogue.version_files import VersionItems
from dagmaster.handlers.contract import HandlerContext, Permanent, Retry
from dagmaster.handlers.geo_task import Ordinal, Params
from dagmaster.handlers.raster.common import open_zones
from dagmaster.handlers.registry import handler
from dagmaster.store.assets import StaleVersion
from dagmaster.store.connect import Connection
from dagmaster.store.stac_items import (
    StacVersionFilter,
    StacVersionRow,
    list_items_of_version,
    list_stac_versions,
    replace_items_of_version,
)

NO_DATABASE = "this worker has no connection to the database; run the task on a worker with one"
MAX_VERSIONS = 5000


class SelectParams(Params):
    """Without conditions, all versions. `after` continues a truncated selection: its `next_after`."""

    asset_id: str | None = None
    collection_id: str | None = None
    after: tuple[str, int] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_VERSIONS)] = MAX_VERSIONS


@handler("list_stac_versions", params=SelectParams, isolation="thread")
async def list_versions(ctx: HandlerContext, params: SelectParams) -> dict[str, Any]:
    """List the versions that the catalogue should describe, to fan out over."""
    where = StacVersionFilter(asset_id=params.asset_id, collection_id=params.collection_id)
    async with _pool(ctx).store_connection() as conn:
        rows = await list_stac_versions(conn, where, after=params.after, limit=params.limit)
    versions = [{"asset_id": row["asset_id"], "version_ordinal": row["version_ordinal"]} for row in rows]
    is_cut = len(rows) == params.limit
    next_after = [rows[-1]["asset_id"], rows[-1]["version_ordinal"]] if is_cut else None
    return {"versions": versions, "count": len(versions), "next_after": next_after}


class VersionParams(Params):
    asset_id: str
    version_ordinal: Ordinal


class RepairParams(VersionParams):
    """With `dry_run`, faults are reported and nothing is changed."""

    dry_run: bool = False


class Outcome(StrEnum):
    UNCHANGED = "unchanged"
    REBUILT = "rebuilt"
    MENDED = "mended"
    FAULTY = "faulty"
    SKIPPED = "skipped"


class ItemFaults(BaseModel):
    item_id: str
    faults: list[Fault]


class RepairReport(BaseModel):
    """`problem` says why a version is still faulty, or was skipped."""

    asset_id: str
    version_ordinal: int
    outcome: Outcome
    items: int = 0
    faults: list[ItemFaults] = Field(default_factory=list)
    problem: str | None = None


@handler("rebuild_stac", params=VersionParams, isolation="thread")
async def rebuild_stac(ctx: HandlerContext, params: VersionParams) -> RepairReport:
    """Rebuild all entries of a version from its files, replacing the existing ones."""
    return await _repair(ctx, params, replaces_all=True, dry_run=False)


@handler("repair_stac_items", params=RepairParams, isolation="thread")
async def repair_stac_items(ctx: HandlerContext, params: RepairParams) -> RepairReport:
    """Compare the entries of a version with its files, and replace wrong ones.

    A missing or damaged file cannot be repaired by an entry: then the entries stay as they are.
    """
    return await _repair(ctx, params, replaces_all=False, dry_run=params.dry_run)


async def _repair(ctx: HandlerContext, params: VersionParams, *, replaces_all: bool, dry_run: bool) -> RepairReport:
    key = {"asset_id": params.asset_id, "version_ordinal": params.version_ordinal}
    async with _pool(ctx).store_connection() as conn:
        rows = await list_stac_versions(conn, StacVersionFilter(**params.model_dump(include=set(key))), limit=1)
        if not rows:
            reason = "the version does not exist, is not processed, or was never described for the catalogue"
            return RepairReport(**key, outcome=Outcome.SKIPPED, problem=reason)
        stored = {
            row["item_id"]: row["content"]
            for row in await list_items_of_version(conn, params.asset_id, params.version_ordinal)
        }
        source = VersionItems(ctx, open_zones(), rows[0], stored)
        try:
            expected = {item["id"]: item for item in await source.make()}
        except (Invalid, NotFound) as error:
            ctx.logger.warning("version %s of %s: %s", params.version_ordinal, params.asset_id, error)
            return RepairReport(**key, outcome=Outcome.FAULTY, items=len(stored), problem=str(error))
        faults = _compare(stored, expected)
        report = RepairReport(**key, outcome=Outcome.UNCHANGED, items=len(stored), faults=faults)
        if not faults and not replaces_all:
            return report
        if dry_run:
            return report.model_copy(update={"outcome": Outcome.FAULTY})
        outcome = Outcome.REBUILT if replaces_all else Outcome.MENDED
        return await _replace(conn, rows[0], source, expected, report.model_copy(update={"outcome": outcome}))


def _compare(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> list[ItemFaults]:
    faults = {item_id: find_faults(stored.get(item_id), item) for item_id, item in expected.items()}
    faults |= {item_id: [Fault.SURPLUS] for item_id in stored if item_id not in expected}
    return [ItemFaults(item_id=item_id, faults=faults[item_id]) for item_id in sorted(faults) if faults[item_id]]


async def _replace(
    conn: Connection,
    version: StacVersionRow,
    source: VersionItems,
    expected: Mapping[str, dict[str, Any]],
    report: RepairReport,
) -> RepairReport:
    try:
        count = await replace_items_of_version(conn, version, source.make_collection(), list(expected.values()))
    except StaleVersion as error:
        raise Retry("the version was processed again in the meantime") from error
    if count < len(expected):
        problem = f"{len(expected) - count} of {len(expected)} ids belong to items of another version"
        return report.model_copy(update={"outcome": Outcome.FAULTY, "items": count, "problem": problem})
    return report.model_copy(update={"items": count})


def _pool(ctx: HandlerContext) -> Any:
    if ctx.pool is None:
        raise Permanent(NO_DATABASE)
    return ctx.pool
