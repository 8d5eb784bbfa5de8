"""Catalogue the rasters of a whole folder or container, unchanged."""

import re
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Annotated, Any, Self

import orjson
from pydantic import BaseModel, Field, model_validator

from dagmaster.errors import Invalid, NotFound
from dagmaster.geo.footprint import bbox_around
from dagmaster.geo.raster.cog import inspect_cog
from dagmaster.geo.stac.items import SHA256_MULTIHASH, make_collection
from dagmaster.handlers.contract import HandlerContext, Permanent
from dagmaster.handlers.geo_task import Params, Reference, VersionParams, invalid_is_permanent, open_zones
from dagmaster.handlers.raster.cog import CogOutput, fetch
from dagmaster.handlers.raster.stac import MAX_ITEMS, ItemVersionParams, describe_cog_item, register
from dagmaster.handlers.registry import handler

MAX_LISTED = 100_000
MAX_SLUG = 100
Suffix = Annotated[str, Field(pattern=r"^\.[A-Za-z0-9]{1,10}$")]


class ListParams(Params):
    """`folder` is a zone or a folder in it. The files are split into batches, to fan out over."""

    folder: Reference
    suffixes: Annotated[list[Suffix], Field(min_length=1)] = Field(default_factory=lambda: [".tif", ".tiff"])
    batch_size: Annotated[int, Field(ge=1, le=MAX_ITEMS)] = 20


class RasterFile(BaseModel):
    path: str
    size_bytes: int


class ListOutput(BaseModel):
    """`batches` are the same paths, as extract_stac_metadata takes them."""

    files: list[RasterFile]
    batches: list[list[str]]
    count: int


@handler("list_raster_files", params=ListParams)
async def list_raster_files(ctx: HandlerContext, params: ListParams) -> ListOutput:
    """List the rasters of a folder and its subfolders, by file extension."""
    with invalid_is_permanent():
        listed = await open_zones().list(params.folder, limit=MAX_LISTED + 1)
        suffixes = {suffix.lower() for suffix in params.suffixes}
        files = [file for file in listed if PurePosixPath(file.reference).suffix.lower() in suffixes]
        if len(listed) > MAX_LISTED or len(files) > MAX_ITEMS:
            count = f"more than {MAX_LISTED} files" if len(listed) > MAX_LISTED else f"{len(files)} rasters"
            raise Invalid(f"{params.folder} has {count}; a catalogue takes {MAX_ITEMS} at once: name a folder in it")
    paths = [file.reference for file in files]
    size = params.batch_size
    return ListOutput(
        files=[RasterFile(path=file.reference, size_bytes=file.size_bytes) for file in files],
        batches=[paths[start : start + size] for start in range(0, len(paths), size)],
        count=len(files),
    )


class MetadataParams(ItemVersionParams):
    """`path`, or `paths` of many files, each of which gets its own id."""

    path: Reference | None = None
    paths: Annotated[list[Reference], Field(max_length=MAX_ITEMS)] | None = None

    @model_validator(mode="after")
    def _know_the_files(self) -> Self:
        if (self.path is None) == (self.paths is None):
            raise ValueError("pass path or paths")
        if self.paths is not None and self.item_id is not None:
            raise ValueError("item_id is for one file; pass path instead of paths")
        return self


@handler("extract_stac_metadata", params=MetadataParams, isolation="process")
def extract_stac_metadata(ctx: HandlerContext, params: MetadataParams) -> dict[str, Any]:
    """Describe COGs of the storage as STAC items; every block of them is read.

    With many files, those that cannot be described are listed in `problems`, and the others are described.
    """
    if params.path is not None:
        with invalid_is_permanent():
            return register(ctx, params, _inspect(ctx, params.path))
    items, problems = [], []
    for number, path in enumerate(params.paths or [], 1):
        try:
            cog = _inspect(ctx, path)
            items.append(describe_cog_item(ctx, params, params, cog, _item_id(params, cog.blob_path)))
        except (Invalid, NotFound, Permanent) as error:
            problems.append({"path": path, "problem": str(error)})
        ctx.progress(number, len(params.paths or []), "files read")
    return {"stac_items": items, "stac_collection_id": params.collection_id, "problems": problems}


def _inspect(ctx: HandlerContext, reference: str) -> CogOutput:
    storage = open_zones()
    local = fetch(ctx, reference)
    path = storage.local_path(local)
    source = storage.locate(reference).reference
    try:
        info = inspect_cog(path)
    finally:
        if local != source:
            path.unlink()  # One copy at a time: a container may be larger than this machine's disk.
    return CogOutput(blob_path=source, content_hash=f"sha256:{info.sha256}", bbox=info.bbox, cog=info)


def _item_id(version: VersionParams, reference: str) -> str:
    """Derived from the path: the same file always has the same id."""
    path = PurePosixPath(reference).with_suffix("")
    slug = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(path.parts[1:])).strip("-")[-MAX_SLUG:].lstrip("-") or "raster"
    digest = sha256(reference.encode()).hexdigest()[:8]
    return "-".join(filter(None, [version.version_id, slug, digest]))


class Extracted(BaseModel):
    stac_items: list[dict[str, Any]]
    problems: list[dict[str, str]] = Field(default_factory=list)


class ContainerParams(VersionParams):
    """`extracted` are the outputs of extract_stac_metadata."""

    extracted: list[Extracted]
    collection_id: str
    title: str | None = None
    description: str | None = None
    target: str | None = None


@handler("stac_catalog_container", params=ContainerParams)
async def stac_catalog_container(ctx: HandlerContext, params: ContainerParams) -> dict[str, Any]:
    """Merge the items of a container's rasters, and write the index of their files.

    They enter the catalogue with the asset's version, when the job completes.
    """
    items = [item for part in params.extracted for item in part.stac_items]
    problems = [problem for part in params.extracted for problem in part.problems]
    with invalid_is_permanent():
        if not items:
            reasons = "; ".join(f"{problem['path']}: {problem['problem']}" for problem in problems[:3])
            raise Invalid(f"no raster can be catalogued: {reasons or 'the folder has none'}")
        collection = make_collection(params.collection_id, title=params.title, description=params.description)
        catalogued = await catalogue(ctx, collection, items, params.target)
    return {**catalogued, "problems": problems}


async def catalogue(
    ctx: HandlerContext, collection: dict[str, Any], items: list[dict[str, Any]], target: str | None
) -> dict[str, Any]:
    """The entries of a version of many files, whose own file is the index of them."""
    index = orjson.dumps({"type": "FeatureCollection", "features": [_feature(item) for item in items]})
    target = target or f"silver/catalogues/{ctx.job_id}/{ctx.retry_count}/index.geojson"
    stored = await open_zones().write(target, index)
    return {
        "stac_collection": collection,
        "stac_collection_id": collection["id"],
        "stac_items": items,
        "blob_path": stored.reference,
        "content_hash": f"sha256:{stored.sha256}",
        "bbox": bbox_around([item["bbox"] for item in items]),
        "item_count": len(items),
    }


def _feature(item: dict[str, Any]) -> dict[str, Any]:
    data = item["assets"]["data"]
    properties = {
        "item_id": item["id"],
        "blob_path": data["href"],
        "content_hash": f"sha256:{data['file:checksum'].removeprefix(SHA256_MULTIHASH)}",
        "size_bytes": data["file:size"],
    }
    return {"type": "Feature", "bbox": item["bbox"], "geometry": item["geometry"], "properties": properties}
