"""From an untrusted file to the stored files: GeoParquet and preview tiles."""

from collections.abc import Callable, Iterator
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel

from dagmaster.geo.validation import outcome_of
from dagmaster.geo.vector import geometries, geoparquet, preview_tiles
from dagmaster.geo.vector.cleaner import GEOMETRY, SORT_KEY, LayerCleaner
from dagmaster.geo.vector.columns import Column
from dagmaster.geo.vector.crs import ResolvedCrs, resolve_crs
from dagmaster.geo.vector.preview_tiles import Preview
from dagmaster.geo.vector.reader import Layer, SourceFile, open_source, read_layer
from dagmaster.geo.vector.report import Box, VectorReport, warnings_about
from dagmaster.geo.vector.sorted_features import DEFAULT_CHUNK_ROWS, Chunk, FeatureSorter

OnProgress = Callable[[float], None]


class StoredFile(BaseModel, frozen=True):
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "StoredFile":
        with path.open("rb") as file:
            return cls(size_bytes=path.stat().st_size, sha256=file_digest(file, "sha256").hexdigest())


class LayerSummary(BaseModel, frozen=True):
    """The catalogue's view of a layer."""

    bbox: Box
    rows: int
    columns: list[Column]
    geometry_types: list[str]
    parquet: StoredFile
    pmtiles: StoredFile


class LayerFiles(BaseModel, frozen=True):
    report: VectorReport
    parquet: StoredFile
    pmtiles: StoredFile
    preview: Preview
    chunks: list[Chunk]

    @property
    def summary(self) -> LayerSummary:
        assert self.report.bbox is not None
        return LayerSummary(
            bbox=self.report.bbox,
            rows=self.report.features.kept,
            columns=self.report.columns,
            geometry_types=self.report.geometry_types,
            parquet=self.parquet,
            pmtiles=self.pmtiles,
        )


def prepare(
    source: Path,
    target: Path,
    *,
    layer: str | None = None,
    assigned_crs: str | None = None,
    encoding: str | None = None,
    chunk_rows: int = DEFAULT_CHUNK_ROWS,
    on_progress: OnProgress | None = None,
) -> LayerFiles:
    """Write `target`, a GeoParquet file, and the preview beside it, with the extension `.pmtiles`.

    `assigned_crs` is the sender's; it must not contradict the file. Raises UnreadableVector or VectorRejected.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Unique to this call: an attempt that is wrongly believed dead must not disturb the next one.
    with TemporaryDirectory(prefix=f".{target.stem}.", dir=target.parent) as folder:
        work = Path(folder)
        opened = open_source(source, work, encoding=encoding)
        with read_layer(opened, layer) as read:
            crs = resolve_crs(read.crs, assigned_crs)
            cleaner = LayerCleaner(read.schema, read.geometry, crs)
            sorter = FeatureSorter(work, cleaner.schema)
            _sort(read, cleaner, sorter, on_progress)
        report = _report(opened, read, crs, cleaner).check()
        made = work / "layer.parquet"
        chunks, preview = _write(report, cleaner, sorter, chunk_rows, made)
        parquet, tiles = StoredFile.of(made), StoredFile.of(preview_path(made))
        preview_path(made).replace(preview_path(target))
        made.replace(target)
    return LayerFiles(report=report, parquet=parquet, pmtiles=tiles, preview=preview, chunks=chunks)


def summarize(parquet: Path, pmtiles: Path) -> LayerSummary:
    """Summarise files that `prepare` has written. Raises UnreadableVector for others."""
    layer = geoparquet.read_description(parquet)
    return LayerSummary(**layer, parquet=StoredFile.of(parquet), pmtiles=StoredFile.of(pmtiles))


def preview_path(parquet: Path) -> Path:
    return parquet.with_suffix(".pmtiles")


def _sort(read: Layer, cleaner: LayerCleaner, sorter: FeatureSorter, on_progress: OnProgress | None) -> None:
    try:
        for batch in read.batches:
            sorter.add(cleaner.clean(batch))
            if on_progress is not None and read.features > 0:
                on_progress(min(cleaner.counts.read / read.features, 1.0))
    finally:
        sorter.close()


def _report(source: SourceFile, layer: Layer, crs: ResolvedCrs, cleaner: LayerCleaner) -> VectorReport:
    counts = cleaner.counts
    problems = []
    if not counts.read:
        problems.append("the layer has no features")
    elif not counts.kept:
        problems.append(f"none of its {counts.read} features has a geometry that can be used")
    warnings = [*source.warnings, *crs.warnings, *warnings_about(counts)]
    warnings += [f"the column {old[:80]!r} is named {new!r}" for old, new in cleaner.renamed]
    kinds = geometries.promoted_kinds(cleaner.kinds)
    return VectorReport(
        outcome=outcome_of(problems, warnings),
        problems=problems + (warnings if problems else []),
        warnings=warnings,
        format=source.kind,
        layer=layer.name,
        encoding=source.encoding,
        crs=crs.name,
        crs_source=crs.source,
        accuracy_metres=crs.accuracy_metres,
        features=counts,
        geometry_types=sorted(geometries.NAMES[kind] for kind in kinds),
        bbox=cleaner.bbox,
        columns=cleaner.columns,
    )


def _write(
    report: VectorReport, cleaner: LayerCleaner, sorter: FeatureSorter, chunk_rows: int, target: Path
) -> tuple[list[Chunk], Preview]:
    assert report.bbox is not None
    fields = [field for field in geoparquet.attributes_of(cleaner.schema) if field.name != SORT_KEY]
    schema = geoparquet.schema_of(fields, report.geometry_types, report.bbox)
    has_mixture = geometries.needs_promotion(cleaner.kinds)
    chunks: list[Chunk] = []

    def row_groups() -> Iterator[Any]:
        for chunk, table in sorter.chunks(chunk_rows):
            chunks.append(chunk)
            yield (geometries.promoted(table, GEOMETRY) if has_mixture else table).cast(schema)

    geoparquet.write(target, schema, row_groups())
    return chunks, preview_tiles.write_preview(target, preview_path(target), report.geometry_types)
