"""Divide rasters into tiles, and write a file for each."""

import shutil
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, Field

from dagmaster.errors import Invalid
from dagmaster.geo.footprint import Bbox
from dagmaster.geo.raster.image import ImageSource, Warp, resolve_image
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.tiling import Tile, TilingScheme, divide_into_tiles, write_tile
from dagmaster.geo.raster.validate import RasterReport
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import Params, Reference, invalid_is_permanent, open_zones
from dagmaster.handlers.raster.cog import CogOutput, store_cog
from dagmaster.handlers.raster.mount import remove_work_folder, work_folder
from dagmaster.handlers.registry import handler
from dagmaster.storage import Storage

DEFAULT_TILE = 4096
DEFAULT_BATCH = 8


class SchemeParams(Params):
    """`report` is the output of raster.validate. Tiles are split into batches of `batch_size` neighbours."""

    path: Reference
    report: RasterReport
    tile_size: int = DEFAULT_TILE
    batch_size: Annotated[int, Field(ge=1)] = DEFAULT_BATCH


class SchemeOutput(TilingScheme):
    """`batches` are the same tiles, as raster.process_tile_batch takes them."""

    profile: Profile
    batches: list[list[Tile]]
    taken_at: str | None


@handler("raster.generate_tiling_scheme", params=SchemeParams, isolation="process")
def generate_tiling_scheme(ctx: HandlerContext, params: SchemeParams) -> SchemeOutput:
    """Divide a raster, after its reprojection, into tiles on one grid."""
    report, profile = params.report, params.report.profile
    with invalid_is_permanent():
        if profile is None:
            raise Invalid("the report has no profile: the raster was rejected")
        source = resolve_image(
            open_zones().local_path(params.path),
            profile.resampling,
            assigned_crs=report.crs,
            target_crs=report.target_crs,
        )
        scheme = divide_into_tiles(source, params.tile_size)
    size = params.batch_size
    batches = [scheme.tiles[start : start + size] for start in range(0, len(scheme.tiles), size)]
    return SchemeOutput(**dict(scheme), profile=profile, batches=batches, taken_at=report.taken_at)


class GridParams(Params):
    """`warp` and `profile` are those of the tiling scheme; `folder` is the target folder in the storage."""

    path: Reference
    profile: Profile
    warp: Warp | None = None
    folder: str | None = None
    taken_at: str | None = None


class TileParams(GridParams):
    tile: Tile


class BatchParams(GridParams):
    tiles: Annotated[list[Tile], Field(min_length=1)]


class TileOutput(BaseModel):
    """`file` is None for a tile without valid pixels."""

    row: int
    column: int
    bbox: Bbox
    outcome: Literal["made", "empty"]
    file: CogOutput | None = None


class BatchOutput(BaseModel):
    tiles: list[TileOutput]


@handler("raster.process_tile", params=TileParams, isolation="process")
def process_tile(ctx: HandlerContext, params: TileParams) -> TileOutput:
    """Write the file of one tile."""
    grid = params.model_dump(exclude={"tile"})
    [made] = process_tile_batch(ctx, BatchParams(**grid, tiles=[params.tile])).tiles
    return made


@handler("raster.process_tile_batch", params=BatchParams, isolation="process")
def process_tile_batch(ctx: HandlerContext, params: BatchParams) -> BatchOutput:
    """Write the files of some tiles, with a checkpoint after each: a later attempt writes only the others."""
    storage = open_zones()
    made = _made_before(ctx)
    with invalid_is_permanent():
        source = ImageSource(path=storage.local_path(params.path), warp=params.warp)
        folder = work_folder(storage, ctx)
        for number, tile in enumerate(params.tiles, 1):
            if _key(tile) not in made:
                made[_key(tile)] = _make(storage, source, tile, params, _target(ctx, params, tile), folder)
                tiles = [output.model_dump(mode="json") for output in made.values()]
                ctx.progress(number, len(params.tiles), "tiles")
                ctx.checkpoint(f"tile {tile.row}-{tile.column}", {"tiles": tiles})
    remove_work_folder(folder)
    return BatchOutput(tiles=[made[_key(tile)] for tile in params.tiles])


def _key(tile: Tile | TileOutput) -> tuple[int, int]:
    return tile.row, tile.column


def _made_before(ctx: HandlerContext) -> dict[tuple[int, int], TileOutput]:
    tiles = ctx.resumed_from.data.get("tiles", []) if ctx.resumed_from is not None else []
    outputs = [TileOutput.model_validate(tile) for tile in tiles]
    return {_key(output): output for output in outputs}


def _target(ctx: HandlerContext, params: GridParams, tile: Tile) -> str:
    folder = params.folder or f"silver/rasters/{ctx.job_id}/tiles"
    return f"{folder}/{PurePosixPath(params.path).stem}_{tile.row}_{tile.column}.tif"


def _make(
    storage: Storage, source: ImageSource, tile: Tile, params: GridParams, target: str, folder: Path
) -> TileOutput:
    local, superblocks = folder / PurePosixPath(target).name, folder / "superblocks"
    info = write_tile(source.model_copy(update={"part": tile.part}), local, params.profile, superblocks)
    shutil.rmtree(superblocks)
    if info is None:
        return TileOutput(row=tile.row, column=tile.column, bbox=tile.bbox, outcome="empty")
    made = store_cog(storage, local, info, target).model_copy(update={"taken_at": params.taken_at})
    local.unlink()
    return TileOutput(row=tile.row, column=tile.column, bbox=tile.bbox, outcome="made", file=made)


class FinalizeParams(Params):
    """`tiles` are the outputs of all tiles; `bbox` and `footprint` those of the tiling scheme."""

    tiles: list[TileOutput]
    bbox: Bbox
    footprint: dict[str, Any]
    target: str | None = None


@handler("finalize", params=FinalizeParams)
async def finalize(ctx: HandlerContext, params: FinalizeParams) -> dict[str, Any]:
    """Write the index of all tiles, a GeoJSON file with the name, checksum and box of each."""
    files = [(tile, tile.file) for tile in params.tiles if tile.file is not None]
    with invalid_is_permanent():
        if not files:
            raise Invalid("all tiles are empty")
        features = [_feature(tile, file) for tile, file in sorted(files, key=lambda pair: _key(pair[0]))]
        target = params.target or f"silver/rasters/{ctx.job_id}/tiles/index.geojson"
        index = orjson.dumps({"type": "FeatureCollection", "features": features})
        stored = await open_zones().write(target, index)
    return {
        "blob_path": stored.reference,
        "content_hash": f"sha256:{stored.sha256}",
        "bbox": params.bbox,
        "geometry": params.footprint,
        "tile_count": len(files),
        "empty_count": len(params.tiles) - len(files),
        "size_bytes": sum(file.cog.size_bytes for _, file in files),
    }


def _feature(tile: TileOutput, file: CogOutput) -> dict[str, Any]:
    properties = {
        "row": tile.row,
        "column": tile.column,
        "blob_path": file.blob_path,
        "content_hash": file.content_hash,
        "size_bytes": file.cog.size_bytes,
    }
    return {"type": "Feature", "bbox": tile.bbox, "geometry": file.cog.footprint, "properties": properties}
