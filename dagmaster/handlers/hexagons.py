"""Handlers of hexagons: statistics of rasters and vector layers by cell of the H3 grid.

Load them with `DAGMASTER_HANDLERS=dagmaster.handlers.hexagons`; they need the extra `geo`.
"""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, Field

from dagmaster.errors import Invalid
from dagmaster.geo.footprint import Bbox, bbox_around
from dagmaster.geo.hexagons import cell_files, connectivity, layer_statistics, raster_statistics
from dagmaster.geo.hexagons import cells as h3_cells
from dagmaster.geo.hexagons.raster_statistics import STATISTICS, ChunkCell, Statistic
from dagmaster.geo.vector import layer_files
from dagmaster.geo.vector.layer_files import StoredFile
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import JobFiles, Params, Reference, invalid_is_permanent
from dagmaster.handlers.registry import handler

Resolution = Annotated[int, Field(ge=h3_cells.CHUNK_RESOLUTION, le=h3_cells.MAX_RESOLUTION)]
# Part of a path in the storage.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
ROOT = "silver/h3_stats"


class RecipeOptions(Params):
    period: Name = "all"
    resolution: Resolution = 7
    band: Annotated[int, Field(ge=1)] = 1
    statistics: Annotated[list[Statistic], Field(min_length=1)] = Field(default_factory=lambda: list(STATISTICS))


class Recipe(RecipeOptions):
    """The computation; it is stored with the result."""

    raster: Name

    @property
    def folder(self) -> str:
        return f"{ROOT}/raster={self.raster}/period={self.period}/resolution={self.resolution}"


class DiscoverParams(RecipeOptions):
    """`name` is the name of the raster in the paths of the results; by default, the file's name."""

    source: Reference
    name: Name | None = None


class DiscoverOutput(BaseModel):
    """`path` is the copy for the next steps, `chunks` the list to fan out over."""

    path: str
    sha256: str
    recipe: Recipe
    chunks: list[ChunkCell]


@handler("h3_discover_raster", params=DiscoverParams, isolation="process")
def h3_discover_raster(ctx: HandlerContext, params: DiscoverParams) -> DiscoverOutput:
    """Find the cells of resolution 3 that a GeoTIFF touches, and fix the recipe."""
    files = JobFiles(ctx)
    with invalid_is_permanent():
        local = files.fetch(params.source)
        recipe = Recipe(raster=params.name or _name_of(local), **params.model_dump(exclude={"source", "name"}))
        chunks = raster_statistics.discover(local)
    path = files.reference("source", ctx.node_id, local.name)
    return DiscoverOutput(path=path, sha256=StoredFile.of(local).sha256, recipe=recipe, chunks=chunks)


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", path.stem).lstrip("._-")[:100] or "raster"


class ZonalParams(Params):
    """`path` and `recipe` come from h3_discover_raster; `chunk` is an item of its list."""

    path: Reference
    recipe: Recipe
    chunk: ChunkCell


class ChunkFile(BaseModel):
    """`blob_path` is null for a cell without valid pixels. `bbox` is that of the cell."""

    cell: str
    blob_path: str | None
    rows: int
    sha256: str | None
    bbox: Bbox


@handler("h3_zonal_stats", params=ZonalParams, isolation="process")
def h3_zonal_stats(ctx: HandlerContext, params: ZonalParams) -> ChunkFile:
    """Statistics of the raster in the descendants of one cell, as a Parquet file sorted by `h3_index`."""
    files, recipe, chunk = JobFiles(ctx), params.recipe, params.chunk
    with invalid_is_permanent():
        cell = h3_cells.parse_cell(chunk.cell)
        table = raster_statistics.zonal_statistics(
            files.path(params.path), cell, recipe.resolution, recipe.statistics, recipe.band
        )
        if not table.num_rows:
            return ChunkFile(cell=chunk.cell, blob_path=None, rows=0, sha256=None, bbox=chunk.bbox)
        stored = _store(files, table, f"{recipe.folder}/h3_l3={chunk.cell}.parquet", f"{chunk.cell}.parquet")
    return ChunkFile(cell=chunk.cell, rows=table.num_rows, bbox=chunk.bbox, **stored)


def _store(files: JobFiles, table: Any, target: str, name: str) -> dict[str, str]:
    local = files.path(files.reference("cells", name))
    cell_files.write(table, local)
    checksum = StoredFile.of(local).sha256
    return {"blob_path": files.store(local, target, checksum), "sha256": checksum}


class CompactionParams(Params):
    """`chunks` are the outputs of h3_zonal_stats, `sha256` is that of the raster."""

    recipe: Recipe
    sha256: str
    chunks: list[ChunkFile]


@handler("h3_compaction", params=CompactionParams, isolation="thread")
def h3_compaction(ctx: HandlerContext, params: CompactionParams) -> dict[str, Any]:
    """Merge the files of the chunks into one, sorted by `h3_index`, with a manifest beside it."""
    files, recipe = JobFiles(ctx), params.recipe
    filled = sorted((chunk for chunk in params.chunks if chunk.blob_path), key=lambda chunk: int(chunk.cell, 16))
    with invalid_is_permanent():
        if not filled:
            raise Invalid("no cell has valid pixels: the raster is empty")
        sources = [files.fetch(chunk.blob_path) for chunk in filled if chunk.blob_path]
        local = files.path(files.reference("cells", "compacted", f"{recipe.raster}.parquet"))
        rows = cell_files.concatenate(sources, local)
        checksum = StoredFile.of(local).sha256
        blob_path = files.store(local, f"{recipe.folder}/all.parquet", checksum)
        manifest = {
            "recipe": recipe.model_dump(),
            "raster_sha256": params.sha256,
            "job_id": str(ctx.job_id),
            "rows": rows,
            "sha256": checksum,
            "chunks": [chunk.model_dump() for chunk in filled],
        }
        content = json.dumps(manifest, indent=1, sort_keys=True).encode()
        stored = asyncio.run(files.storage.write(f"{recipe.folder}/manifest.json", content))
    return {
        "blob_path": blob_path,
        "content_hash": f"sha256:{checksum}",
        "manifest_path": stored.reference,
        "rows": rows,
        "bbox": bbox_around([chunk.bbox for chunk in filled]),
    }


class ExportParams(Params):
    path: Reference
    target: str | None = None


@handler("h3_export_dataset", params=ExportParams, isolation="process")
def h3_export_dataset(ctx: HandlerContext, params: ExportParams) -> dict[str, Any]:
    """Convert a file of values by cell to GeoParquet and PMTiles, with the hexagons as geometries."""
    files = JobFiles(ctx)
    with invalid_is_permanent():
        source = files.fetch(params.path)
        plain = files.path(files.reference("cells", "export", source.name))
        cell_files.write_polygons(source, plain)
        local = files.path(files.reference("cells", "layer", source.name))
        layer = layer_files.prepare(plain, local)
        target = params.target or str(PurePosixPath(params.path).with_suffix(".hexagons.parquet"))
        tiles = str(PurePosixPath(target).with_suffix(".pmtiles"))
        return {
            "blob_path": files.store(local, target, layer.parquet.sha256),
            "pmtiles_path": files.store(layer_files.preview_path(local), tiles, layer.pmtiles.sha256),
            "content_hash": f"sha256:{layer.parquet.sha256}",
            "bbox": layer.report.bbox,
            "rows": layer.report.features.kept,
        }


class LayerParams(Params):
    """`path` is the GeoParquet file of vector_prepare."""

    path: Reference
    resolution: Resolution = 7
    target: str | None = None


class AggregationParams(LayerParams):
    """`category` is a column to count by."""

    category: str | None = None


@handler("h3_point_aggregation", params=AggregationParams, isolation="process")
def h3_point_aggregation(ctx: HandlerContext, params: AggregationParams) -> dict[str, Any]:
    """Count the points of a layer in each cell."""
    return _aggregate(ctx, params, layer_statistics.count_points)


@handler("h3_polygon_aggregation", params=AggregationParams, isolation="process")
def h3_polygon_aggregation(ctx: HandlerContext, params: AggregationParams) -> dict[str, Any]:
    """Count the polygons of a layer that touch each cell, and their area in square metres."""
    return _aggregate(ctx, params, layer_statistics.measure_polygons)


@handler("h3_line_aggregation", params=AggregationParams, isolation="process")
def h3_line_aggregation(ctx: HandlerContext, params: AggregationParams) -> dict[str, Any]:
    """Count the lines of a layer in each cell, and their length in metres."""
    return _aggregate(ctx, params, layer_statistics.measure_lines)


@handler("h3_binary_intersect", params=AggregationParams, isolation="process")
def h3_binary_intersect(ctx: HandlerContext, params: AggregationParams) -> dict[str, Any]:
    """The cells that a layer touches, whatever its geometry type."""
    return _aggregate(ctx, params, layer_statistics.find_presence)


class WeightedParams(LayerParams):
    """`column` holds numbers."""

    column: str


class MultiWeightedParams(LayerParams):
    columns: Annotated[list[str], Field(min_length=1, max_length=100)]


@handler("h3_weighted_aggregation", params=WeightedParams, isolation="process")
def h3_weighted_aggregation(ctx: HandlerContext, params: WeightedParams) -> dict[str, Any]:
    """The area-weighted mean of a column of a polygon layer in each cell."""
    return _derive(ctx, params, lambda path: layer_statistics.average_by_area(path, params.resolution, [params.column]))


@handler("h3_multi_weighted_aggregation", params=MultiWeightedParams, isolation="process")
def h3_multi_weighted_aggregation(ctx: HandlerContext, params: MultiWeightedParams) -> dict[str, Any]:
    """Like h3_weighted_aggregation for several columns: each polygon is cut only once."""
    return _derive(ctx, params, lambda path: layer_statistics.average_by_area(path, params.resolution, params.columns))


class ConnectivityParams(Params):
    """`path` is a file of values by cell, `column` the cost per metre, `sources` are the start cells."""

    path: Reference
    column: str
    sources: Annotated[list[str], Field(min_length=1, max_length=10_000)]
    target: str | None = None


@handler("h3_connectivity", params=ConnectivityParams, isolation="process")
def h3_connectivity(ctx: HandlerContext, params: ConnectivityParams) -> dict[str, Any]:
    """The cost of the cheapest path over neighbouring cells from the nearest source, and that source."""
    return _derive(ctx, params, lambda path: connectivity.accumulate_cost(path, params.column, params.sources))


def _aggregate(
    ctx: HandlerContext, params: AggregationParams, measure: Callable[[Path, int, str | None], Any]
) -> dict[str, Any]:
    return _derive(ctx, params, lambda path: measure(path, params.resolution, params.category))


def _derive(
    ctx: HandlerContext, params: LayerParams | ConnectivityParams, make: Callable[[Path], Any]
) -> dict[str, Any]:
    files = JobFiles(ctx)
    with invalid_is_permanent():
        source = files.fetch(params.path)
        table = make(source)
        name = "cost" if isinstance(params, ConnectivityParams) else f"resolution={params.resolution}"
        target = params.target or f"{ROOT}/vector={source.stem}/{ctx.job_id}/{name}.parquet"
        stored = _store(files, table, target, f"{ctx.node_id}.parquet")
    return {
        "blob_path": stored["blob_path"],
        "content_hash": f"sha256:{stored['sha256']}",
        "rows": table.num_rows,
    }


@handler("h3_finalize")
def h3_finalize(ctx: HandlerContext) -> dict[str, int]:
    """Remove the files of this job from the zone mount."""
    return JobFiles(ctx).remove()
