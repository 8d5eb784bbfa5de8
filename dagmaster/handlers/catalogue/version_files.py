"""The catalogue entries of a version, derived from its files."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

from dagmaster.errors import Invalid
from dagmaster.geo.raster.cog import inspect_cog
from dagmaster.geo.stac.items import DatetimeSource, Moment, make_collection, make_item
from dagmaster.geo.stac.vector_items import make_vector_item
from dagmaster.geo.vector import layer_files
from dagmaster.geo.vector.layer_files import StoredFile
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.export import HASH_PREFIX, read_index, tiles_of
from dagmaster.handlers.raster.common import remove_work_folder
from dagmaster.model.asset import DataType
from dagmaster.storage import LocalFile, Storage
from dagmaster.store.stac_items import StacVersionRow


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
        await self._check_index()
        tiles = tiles_of(index, version["blob_path"])
        items = []
        for number, (tile, feature) in enumerate(zip(tiles, index["features"], strict=True), 1):
            item_id = self._tile_id(feature["properties"])
            items.append(await self._raster_item(item_id, tile.blob_path, tile.content_hash))
            self.ctx.progress(number, len(tiles), "files read")
        return items

    def make_collection(self) -> dict[str, Any]:
        """Build a collection that is missing in the catalogue."""
        return make_collection(self.version["stac_collection_id"])

    def _item_id(self) -> str:
        version = self.version
        return version["stac_item_id"] or f"{version['asset_id']}-{version['version_ordinal']}"

    def _tile_id(self, properties: Mapping[str, Any]) -> str:
        if "item_id" in properties:
            return str(properties["item_id"])
        return f"{self._item_id()}-{properties['row']}-{properties['column']}"

    async def _check_index(self) -> None:
        async with self._processed(self.version["blob_path"], self.version["content_hash"]):
            pass

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
