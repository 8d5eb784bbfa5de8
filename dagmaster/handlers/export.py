"""Copy approved and public versions to the public zone."""

from pathlib import PurePosixPath
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field, ValidationError

from dagmaster.errors import Invalid
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import invalid_is_permanent, open_zones
from dagmaster.handlers.registry import handler
from dagmaster.storage import Copied, Storage

INDEX_SUFFIX = ".geojson"
MAX_INDEX_BYTES = 64 * 1024 * 1024
HASH_PREFIX = "sha256:"


class Export(BaseModel):
    """`blob_path` is the file of a version in the storage."""

    asset_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    version_ordinal: Annotated[int, Field(ge=0)]
    blob_path: Annotated[str, Field(min_length=1)]

    @property
    def folder(self) -> str:
        return f"external/{self.asset_id}/{self.version_ordinal}"


class Tile(BaseModel):
    """A tile in the index of a tiled version."""

    blob_path: str
    content_hash: str
    size_bytes: int

    @property
    def name(self) -> str:
        return PurePosixPath(self.blob_path).name


@handler("adf_export", params=Export)
async def adf_export(ctx: HandlerContext, params: Export) -> dict[str, Any]:
    """Copy the file of a version to the zone `external`, with its checksum. An interrupted copy is resumed.

    For a version of tiles, each tile is copied, with a checkpoint after each, and then an index of the copies.
    """
    storage = open_zones()
    with invalid_is_permanent():
        index = await read_index(storage, params.blob_path)
        if index is None:
            return await _export_file(ctx, storage, params)
        return await _export_tiles(ctx, storage, params, index)


async def read_index(storage: Storage, reference: str) -> dict[str, Any] | None:
    """The index of tiles in this file; None for any other file."""
    if PurePosixPath(storage.locate(reference).reference).suffix != INDEX_SUFFIX:
        return None
    if await storage.size(reference) > MAX_INDEX_BYTES:
        return None  # A layer of features, then.
    content = b"".join([chunk async for chunk in storage.read(reference)])
    document = parse_features(content, reference)
    has_tiles = any("blob_path" in (feature.get("properties") or {}) for feature in document["features"])
    return document if has_tiles else None


def parse_features(content: bytes, name: str) -> dict[str, Any]:
    """Raises Invalid unless it is a GeoJSON FeatureCollection. `name` is the file, for messages."""
    try:
        document: Any = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"{name} is not JSON: {error}") from error
    features = document.get("features") if isinstance(document, dict) else None
    if not isinstance(features, list) or not all(isinstance(feature, dict) for feature in features):
        raise Invalid(f"{name} is not a GeoJSON FeatureCollection")
    return dict(document)


def tiles_of(index: dict[str, Any], reference: str) -> list[Tile]:
    """Raises Invalid for an index that cannot be exported: a tile is not described, or two have the same name."""
    try:
        tiles = [Tile.model_validate(feature.get("properties")) for feature in index["features"]]
    except ValidationError as error:
        raise Invalid(f"{reference} does not describe each tile with blob_path, content_hash and size_bytes") from error
    if len({tile.name for tile in tiles}) < len(tiles):
        raise Invalid(f"{reference} has two tiles of the same file name")
    return tiles


async def _export_file(ctx: HandlerContext, storage: Storage, params: Export) -> dict[str, Any]:
    name = PurePosixPath(storage.locate(params.blob_path).reference).name
    target = f"{params.folder}/{name}"
    copied = await storage.copy(params.blob_path, target, lambda done, total: ctx.progress(done, total, "bytes copied"))
    return _output(copied, size_bytes=copied.size_bytes)


async def _export_tiles(ctx: HandlerContext, storage: Storage, params: Export, index: dict[str, Any]) -> dict[str, Any]:
    """The index is written last: it never names a missing copy."""
    tiles = tiles_of(index, params.blob_path)
    done = ctx.resumed_from.data.get("tiles", 0) if ctx.resumed_from is not None else 0
    for number, tile in enumerate(tiles[done:], done + 1):
        copied = await storage.copy(tile.blob_path, _target(params, tile))
        if f"{HASH_PREFIX}{copied.sha256}" != tile.content_hash:
            await storage.remove(copied.reference)
            raise Invalid(f"{tile.blob_path} is not the file in the index: its checksum differs")
        ctx.progress(number, len(tiles), "tiles copied")
        await ctx.checkpoint(f"tile {number}", {"tiles": number})
    for feature, tile in zip(index["features"], tiles, strict=True):
        feature["properties"]["blob_path"] = _target(params, tile)
    name = PurePosixPath(params.blob_path).name
    copied = await storage.write(f"{params.folder}/{name}", orjson.dumps(index))
    size_bytes = copied.size_bytes + sum(tile.size_bytes for tile in tiles)
    return {**_output(copied, size_bytes=size_bytes), "tile_count": len(tiles)}


def _target(params: Export, tile: Tile) -> str:
    return f"{params.folder}/tiles/{tile.name}"


def _output(copied: Copied, *, size_bytes: int) -> dict[str, Any]:
    return {"external_blob_path": copied.reference, "size_bytes": size_bytes, "sha256": copied.sha256}
