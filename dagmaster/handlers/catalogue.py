"""Handlers that synchronise the catalogue with the versions of assets and their files.

Load them with `DAGMASTER_HANDLERS=dagmaster.handlers.catalogue`; they need the extra `geo` and a database.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from uuid import uuid4

from pydantic import BaseModel, Field

from dagmaster.errors import Invalid, NotFound
from dagmaster.geo.raster.cog import inspect_cog
from dagmaster.geo.stac.differences import Fault, find_faults
from dagmaster.geo.stac.items import DatetimeSource, Moment, make_collection, make_item
from dagmaster.geo.stac.vector_items import make_vector_item
from dagmaster.geo.vector import layer_files
from dagmaster.geo.vector.layer_files import StoredFile
from dagmaster.handlers.contract import HandlerContext, Retry, pool_of
from dagmaster.handlers.export import HASH_PREFIX, read_index, tiles_of
from dagmaster.handlers.geo_task import Ordinal, Params, open_zones
from dagmaster.handlers.raster.mount import remove_work_folder
from dagmaster.handlers.registry import handler
from dagmaster.model.asset import DataType
from dagmaster.storage import LocalFile, Storage
from dagmaster.store.assets import StaleVersion
from dagmaster.store.connect import Connection
from dagmaster.store.stac_items import (
    StacVersionFilter,
    StacVersionRow,
    list_items_of_version,
    list_stac_versions,
    replace_items_of_version,
)

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
    async with pool_of(ctx).store_connection() as conn:
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
    key = params.model_dump(include={"asset_id", "version_ordinal"})
    async with pool_of(ctx).store_connection() as conn:
        rows = await list_stac_versions(conn, StacVersionFilter(**key), limit=1)
        if not rows:
            reason = "the version does not exist, is not processed, or was never described for the catalogue"
            return RepairReport(**key, outcome=Outcome.SKIPPED, problem=reason)
        stored = {
            row["item_id"]: row["content"]
            for row in await list_items_of_version(conn, params.asset_id, params.version_ordinal)
        }
        try:
            items = await VersionItems(ctx, open_zones(), rows[0], stored).make()
        except (Invalid, NotFound) as error:
            ctx.logger.warning("version %s of %s: %s", params.version_ordinal, params.asset_id, error)
            return RepairReport(**key, outcome=Outcome.FAULTY, items=len(stored), problem=str(error))
        expected = {item["id"]: item for item in items}
        faults = _compare(stored, expected)
        report = RepairReport(**key, outcome=Outcome.UNCHANGED, items=len(stored), faults=faults)
        if not faults and not replaces_all:
            return report
        if dry_run:
            return report.model_copy(update={"outcome": Outcome.FAULTY})
        outcome = Outcome.REBUILT if replaces_all else Outcome.MENDED
        return await _replace(conn, rows[0], expected, report.model_copy(update={"outcome": outcome}))


def _compare(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> list[ItemFaults]:
    faults = {item_id: find_faults(stored.get(item_id), item) for item_id, item in expected.items()}
    faults |= {item_id: [Fault.SURPLUS] for item_id in stored if item_id not in expected}
    return [ItemFaults(item_id=item_id, faults=faults[item_id]) for item_id in sorted(faults) if faults[item_id]]


async def _replace(
    conn: Connection, version: StacVersionRow, expected: Mapping[str, dict[str, Any]], report: RepairReport
) -> RepairReport:
    collection = make_collection(version["stac_collection_id"])  # Stored if the catalogue does not have it.
    try:
        count = await replace_items_of_version(conn, version, collection, list(expected.values()))
    except StaleVersion as error:
        raise Retry("the version was processed again in the meantime") from error
    if count < len(expected):
        problem = f"{len(expected) - count} of {len(expected)} ids belong to items of another version"
        return report.model_copy(update={"outcome": Outcome.FAULTY, "items": count, "problem": problem})
    return report.model_copy(update={"items": count})


@dataclass(frozen=True, slots=True)
class VersionItems:
    """Builds the items of a version. Title and time, if no file has them, come from the existing items."""

    ctx: HandlerContext
    storage: Storage
    version: StacVersionRow
    stored: Mapping[str, Mapping[str, Any]]

    async def make(self) -> list[dict[str, Any]]:
        """Raises FileMissing, and Invalid if a file is not the processed one."""
        version = self.version
        if version["data_type"] == DataType.VECTOR:
            return [await self._vector_item()]
        index = await read_index(self.storage, version["blob_path"])
        if index is None:
            return [await self._raster_item(self._item_id(), version["blob_path"], version["content_hash"])]
        async with self._processed(version["blob_path"], version["content_hash"]):
            pass  # Only the checksum.
        tiles = tiles_of(index, version["blob_path"])
        items = []
        for number, (tile, feature) in enumerate(zip(tiles, index["features"], strict=True), 1):
            item_id = self._tile_id(feature["properties"])
            items.append(await self._raster_item(item_id, tile.blob_path, tile.content_hash))
            self.ctx.progress(number, len(tiles), "files read")
        return items

    def _item_id(self) -> str:
        version = self.version
        return version["stac_item_id"] or f"{version['asset_id']}-{version['version_ordinal']}"

    def _tile_id(self, properties: Mapping[str, Any]) -> str:
        if "item_id" in properties:
            return str(properties["item_id"])
        return f"{self._item_id()}-{properties['row']}-{properties['column']}"

    async def _raster_item(self, item_id: str, reference: str, content_hash: str | None) -> dict[str, Any]:
        async with self._processed(reference, content_hash) as path:
            info = await asyncio.to_thread(inspect_cog, path)
        return make_item(item_id, self.version["stac_collection_id"], info, reference, **self._about(item_id))

    async def _vector_item(self) -> dict[str, Any]:
        reference, item_id = self.version["blob_path"], self._item_id()
        preview = str(PurePosixPath(reference).with_suffix(".pmtiles"))
        async with self._processed(reference, self.version["content_hash"]) as path, self._local(preview) as tiles:
            summary = await asyncio.to_thread(layer_files.summarize, path, tiles)
        return make_vector_item(
            item_id, self.version["stac_collection_id"], summary, reference, preview, **self._about(item_id)
        )

    def _about(self, item_id: str) -> dict[str, Any]:
        version = self.version
        known = (self.stored.get(item_id) or {}).get("properties") or {}
        request_id = version["request_id"] or known.get("platform:request_id")
        platform = {
            **{name: str(value) for name, value in version["platform_refs"].items()},
            "platform_id": version["platform_id"],
            "asset_id": version["asset_id"],
            "version_ordinal": version["version_ordinal"],
            **({"request_id": request_id} if request_id else {}),
        }
        return {"moment": _moment(known, version), "platform": platform, "title": known.get("title")}

    @asynccontextmanager
    async def _processed(self, reference: str, content_hash: str | None) -> AsyncIterator[Path]:
        """The processed file, verified by its checksum: a damaged file must not be described."""
        async with self._local(reference) as path:
            file = await asyncio.to_thread(StoredFile.of, path)
            if content_hash != f"{HASH_PREFIX}{file.sha256}":
                raise Invalid(
                    f"{reference} is not the file that was processed: its checksum differs; process the version again"
                )
            yield path

    @asynccontextmanager
    async def _local(self, reference: str) -> AsyncIterator[Path]:
        """The file on this machine: the file itself, or a temporary copy."""
        located = self.storage.locate(reference)
        if isinstance(located, LocalFile):
            await self.storage.size(reference)  # Raises FileMissing.
            yield located.path
            return
        copy = f"mount/{self.ctx.job_id}/{uuid4().hex}/{PurePosixPath(located.reference).name}"
        path = self.storage.local_path(copy)
        try:
            await self.storage.copy(reference, copy)
            yield path
        finally:
            if path.parent.is_dir():
                remove_work_folder(path.parent)


def _moment(known: Mapping[str, Any], version: StacVersionRow) -> Moment:
    try:
        at = datetime.fromisoformat(str(known.get("datetime")))
        return Moment(at=at.astimezone(UTC), source=DatetimeSource(str(known.get("platform:datetime_source"))))
    except ValueError:
        at = version["processing_completed_at"] or datetime.now(UTC)
        return Moment(at=at.astimezone(UTC), source=DatetimeSource.REGISTRATION)
