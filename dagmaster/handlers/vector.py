"""Handlers of vector layers: from a file in storage to GeoParquet, tiles, a PostGIS table and a catalogue entry.

Load them with `DAGMASTER_HANDLERS=dagmaster.handlers.vector`; they need the extra `geo`.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat

from dagmaster.geo.stac import items
from dagmaster.geo.stac.vector_items import make_vector_item
from dagmaster.geo.vector import derived, layer_files, postgis
from dagmaster.geo.vector.layer_files import LayerFiles
from dagmaster.geo.vector.postgis import Table, TableOwner
from dagmaster.geo.vector.report import Box
from dagmaster.geo.vector.sorted_features import DEFAULT_CHUNK_ROWS, Chunk
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import (
    ItemOptions,
    JobFiles,
    Params,
    Reference,
    VersionParams,
    invalid_is_permanent,
    on_fraction,
)
from dagmaster.handlers.registry import handler
from dagmaster.store.layers import OwnedTable, find_unused_tables

NO_DATABASE = "this worker has no connection to the database"
NO_POSTGIS = "the database does not have PostGIS; an administrator can run CREATE EXTENSION postgis"


class OutputParams(Params):
    chunk_rows: Annotated[int, Field(ge=1, le=1_000_000)] = DEFAULT_CHUNK_ROWS
    target: str | None = None


class PrepareParams(OutputParams):
    """`assigned_crs` is for files without a CRS; it must not contradict a file that has one."""

    source: Reference
    layer: str | None = None
    assigned_crs: str | None = None
    encoding: str | None = None


class LayerOutput(BaseModel):
    """`blob_path`, `content_hash` and `bbox` are copied to the asset's version; `path` is for the next steps."""

    blob_path: str
    pmtiles_path: str
    path: str
    content_hash: str
    bbox: Box
    layer: LayerFiles


@handler("vector_prepare", params=PrepareParams, isolation="process")
def vector_prepare(ctx: HandlerContext, params: PrepareParams) -> LayerOutput:
    """Read, repair and sort a layer, and store it as GeoParquet, with tiles for its preview."""
    files = JobFiles(ctx)
    with invalid_is_permanent():
        source = files.fetch(params.source)
        options = {"layer": params.layer, "assigned_crs": params.assigned_crs, "encoding": params.encoding}
        return _keep(ctx, files, source, params, **options)


def _keep(ctx: HandlerContext, files: JobFiles, source: Path, params: OutputParams, **options: Any) -> LayerOutput:
    """Store the layer of a local file. Each attempt has its own target."""
    name = PurePosixPath(source.name).stem
    target = params.target or f"silver/vectors/{ctx.job_id}/{ctx.node_id}/{ctx.retry_count}/{name}.parquet"
    files.storage.locate(target)
    reference = files.reference("vectors", ctx.node_id, f"{name}.parquet")
    local, on_progress = files.path(reference), on_fraction(ctx, "features read")
    layer = layer_files.prepare(source, local, chunk_rows=params.chunk_rows, on_progress=on_progress, **options)
    for warning in layer.report.warnings:
        ctx.logger.warning("%s: %s", source.name, warning)
    tiles = layer_files.preview_path(local)
    assert layer.report.bbox is not None
    return LayerOutput(
        blob_path=files.store(local, target, layer.parquet.sha256),
        pmtiles_path=files.store(tiles, str(PurePosixPath(target).with_suffix(".pmtiles")), layer.pmtiles.sha256),
        path=reference,
        content_hash=f"sha256:{layer.parquet.sha256}",
        bbox=layer.report.bbox,
        layer=layer,
    )


class TableParams(VersionParams):
    """`prepared` is the output of vector_prepare. Without `table`, asset, version and job name the table."""

    prepared: LayerOutput
    table: str | None = None


class TableOutput(BaseModel):
    """`chunks` are the chunks to load; empty if there is no table, and `reason` says why."""

    table_name: str | None
    reason: str | None = None
    chunks: list[Chunk] = Field(default_factory=list)


@handler("vector_create_table", params=TableParams, isolation="thread")
def vector_create_table(ctx: HandlerContext, params: TableParams) -> TableOutput:
    """Create the table of a layer if the database has PostGIS."""
    with invalid_is_permanent():
        return _create_table(ctx, params, params.prepared, params.table)


def _create_table(ctx: HandlerContext, version: VersionParams, prepared: LayerOutput, name: str | None) -> TableOutput:
    if ctx.pool is None:
        return TableOutput(table_name=None, reason=NO_DATABASE)
    label = version.version_id or PurePosixPath(prepared.blob_path).stem
    table = Table(name) if name else postgis.table_for(label, ctx.job_id)
    with ctx.pool.connection() as conn:
        if (extension := postgis.find_postgis(conn)) is None:
            return TableOutput(table_name=None, reason=NO_POSTGIS)
        path = JobFiles(ctx).path(prepared.path)
        is_new = postgis.create_table(conn, table, extension, path, prepared.layer.report.geometry_types)
        if is_new:
            owner = TableOwner(job_id=ctx.job_id, asset_id=version.asset_id, version_ordinal=version.version_ordinal)
            postgis.set_owner(conn, table, owner)
    if version.asset_id is not None:
        _drop_unused(ctx, asset_id=version.asset_id, version_ordinal=version.version_ordinal)
    return TableOutput(table_name=table.qualified, chunks=prepared.layer.chunks)


class ChunkParams(Params):
    """`path` is that of the prepared layer, `chunk` an item of the list of vector_create_table."""

    table_name: str
    path: Reference
    chunk: Chunk


@handler("vector_upload_chunk", params=ChunkParams, isolation="thread")
def vector_upload_chunk(ctx: HandlerContext, params: ChunkParams) -> dict[str, Any]:
    """Replace the rows of a chunk in one transaction; idempotent."""
    with invalid_is_permanent():
        table, path = Table.parse(params.table_name), JobFiles(ctx).path(params.path)
        with _pool(ctx).connection() as conn:
            rows = postgis.load_chunk(conn, table, path, params.chunk)
    return {"chunk": params.chunk.number, "rows": rows}


class IndexParams(Params):
    """`table_name` is null if there is no table; then there is nothing to do."""

    table_name: str | None
    rows: Annotated[int, Field(ge=0)]


@handler("vector_index_table", params=IndexParams, isolation="thread")
def vector_index_table(ctx: HandlerContext, params: IndexParams) -> dict[str, Any]:
    """Check that all rows are loaded, and index the geometries."""
    if params.table_name is None:
        return {"indexed_rows": 0}
    with invalid_is_permanent():
        table = Table.parse(params.table_name)
        with _pool(ctx).connection() as conn:
            postgis.index_table(conn, table, params.rows)
            postgis.mark_loaded(conn, table)
    return {"table_name": params.table_name, "indexed_rows": params.rows}


def _pool(ctx: HandlerContext) -> Any:
    if ctx.pool is None:
        raise RuntimeError(NO_DATABASE)
    return ctx.pool


class CleanTablesParams(Params):
    """With `dry_run`, the tables are listed and kept."""

    dry_run: bool = False


@handler("vector_clean_tables", params=CleanTablesParams, isolation="thread")
def vector_clean_tables(ctx: HandlerContext, params: CleanTablesParams) -> dict[str, Any]:
    """Drop tables of jobs that no version uses, no job writes to and no retry can continue with."""
    dropped = _drop_unused(ctx, dry_run=params.dry_run)
    return {"tables": dropped, "count": len(dropped)}


def _drop_unused(ctx: HandlerContext, *, dry_run: bool = False, **version: Any) -> list[str]:
    """Drop the unused tables of all jobs or of one version, and return their names. Call it in a thread."""
    with _pool(ctx).connection() as conn:
        owners = postgis.list_owners(conn).items()
    owned = [
        OwnedTable(table.qualified, owner.job_id, owner.asset_id, owner.version_ordinal)
        for table, owner in owners
        # A table that a job without an asset has loaded is its result.
        if not (owner.is_loaded and owner.asset_id is None)
        and all(getattr(owner, name) == value for name, value in version.items())
        and owner.job_id != ctx.job_id
    ]
    unused = asyncio.run(_find_unused(ctx, owned)) if owned else []
    if not dry_run:
        with _pool(ctx).connection() as conn:
            for name in unused:
                postgis.drop_table(conn, Table.parse(name))
                ctx.logger.info("dropped %s: no version uses it, and its job has ended", name)
    return unused


async def _find_unused(ctx: HandlerContext, owned: Sequence[OwnedTable]) -> list[str]:
    async with _pool(ctx).store_connection() as conn:
        return await find_unused_tables(conn, owned)


class VectorItemParams(VersionParams, ItemOptions):
    collection_id: str = "vectors"


class StacParams(VectorItemParams):
    """`prepared` is the output of vector_prepare. Without `item_id`, asset and version identify the item."""

    prepared: LayerOutput
    table_name: str | None = None


@handler("vector_create_stac", params=StacParams)
async def vector_create_stac(ctx: HandlerContext, params: StacParams) -> dict[str, Any]:
    """Describe a layer as a STAC item. It enters the catalogue with the asset's version, when the job completes."""
    with invalid_is_permanent():
        return _describe(ctx, params, params.prepared, params.table_name)


def _describe(
    ctx: HandlerContext, params: VectorItemParams, prepared: LayerOutput, table_name: str | None
) -> dict[str, Any]:
    item = make_vector_item(
        params.item_id or params.default_item_id(ctx, prepared.blob_path),
        params.collection_id,
        prepared.layer.summary,
        prepared.blob_path,
        prepared.pmtiles_path,
        items.resolve_datetime(params.acquired_at, None, datetime.now(UTC)),
        platform=params.platform(ctx),
        title=params.title,
    )
    title = f"The vector layers of {params.collection_id}."
    return {
        "stac_item_id": item["id"],
        "stac_collection_id": params.collection_id,
        "stac_collection": items.make_collection(params.collection_id, description=title),
        "stac_item": item,
        "blob_path": prepared.blob_path,
        "content_hash": prepared.content_hash,
        "bbox": item["bbox"],
        **({"table_name": table_name} if table_name else {}),
    }


@handler("vector_clean_mount")
def vector_clean_mount(ctx: HandlerContext) -> dict[str, int]:
    """Remove the files of this job from the zone mount."""
    return JobFiles(ctx).remove()


class CompleteParams(PrepareParams, VectorItemParams):
    table: str | None = None


@handler("vector_docker_complete", params=CompleteParams, isolation="thread")
def vector_docker_complete(ctx: HandlerContext, params: CompleteParams) -> dict[str, Any]:
    """Run the whole pipeline in one task, with a checkpoint after each chunk."""
    data = dict(ctx.resumed_from.data) if ctx.resumed_from else {}
    with invalid_is_permanent():
        prepared = LayerOutput.model_validate(data["prepared"]) if data else vector_prepare(ctx, params)
        data.setdefault("prepared", prepared.model_dump(mode="json"))
        made = _create_table(ctx, params, prepared, params.table)
        for chunk in made.chunks[data.get("loaded", 0) :]:
            assert made.table_name is not None
            vector_upload_chunk(ctx, ChunkParams(table_name=made.table_name, path=prepared.path, chunk=chunk))
            ctx.progress(chunk.number + 1, len(made.chunks), "chunks loaded")
            data["loaded"] = chunk.number + 1
            ctx.checkpoint(f"chunk {chunk.number}", data)
        vector_index_table(ctx, IndexParams(table_name=made.table_name, rows=prepared.layer.report.features.kept))
        described = _describe(ctx, params, prepared, made.table_name)
    JobFiles(ctx).remove()
    return {**described, "table_reason": made.reason, "report": prepared.layer.report.model_dump(mode="json")}


class DerivedParams(OutputParams):
    """`path` is a GeoParquet file, such as the `blob_path` of vector_prepare."""

    path: Reference


class SimplifyParams(DerivedParams):
    tolerance_metres: Annotated[FiniteFloat, Field(gt=0)]


@handler("vector_simplify", params=SimplifyParams, isolation="process")
def vector_simplify(ctx: HandlerContext, params: SimplifyParams) -> LayerOutput:
    """Remove points of a layer's shapes that are within the tolerance of the simpler shape."""
    return _derive(ctx, params, lambda source, made: derived.simplify(source, made, params.tolerance_metres))


class DissolveParams(DerivedParams):
    by: Annotated[list[str], Field(max_length=20)] = Field(default_factory=list)


@handler("vector_dissolve", params=DissolveParams, isolation="process")
def vector_dissolve(ctx: HandlerContext, params: DissolveParams) -> LayerOutput:
    """Merge the shapes of features with the same values in these columns; without columns, all of them."""
    return _derive(ctx, params, lambda source, made: derived.dissolve(source, made, params.by))


def _derive(ctx: HandlerContext, params: DerivedParams, make: Callable[[Path, Path], None]) -> LayerOutput:
    files = JobFiles(ctx)
    with invalid_is_permanent():
        source = files.fetch(params.path)
        made = files.path(files.reference("derived", ctx.node_id, f"{source.stem}.parquet"))
        made.parent.mkdir(parents=True, exist_ok=True)
        make(source, made)
        return _keep(ctx, files, made, params)
