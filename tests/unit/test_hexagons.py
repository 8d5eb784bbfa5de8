"""Statistics by hexagon: of a real raster, and of layers; judged by other ways to compute them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import h3
import numpy as np
import pyarrow.parquet as pq
import pytest
import rasterio
import shapely
from affine import Affine
from pyproj import Geod
from rasters import DEM, write_tiff
from vectors import COUNTIES, GLACIERS

from dagmaster.errors import Invalid
from dagmaster.geo.errors import VectorRejected
from dagmaster.geo.hexagons import cell_files, layer_statistics
from dagmaster.geo.hexagons import cells as h3_cells
from dagmaster.geo.hexagons.raster_statistics import discover, zonal_statistics
from dagmaster.geo.vector import layer_files
from dagmaster.handlers import hexagons, registry
from dagmaster.model.optional_handlers import OPTIONAL_HANDLERS

RESOLUTION = 6


def test_chunks_together_have_every_hexagon_with_its_weighted_mean(tmp_path: Path) -> None:
    chunks = discover(DEM)
    assert [chunk.cell for chunk in chunks] == sorted(chunk.cell for chunk in chunks)
    tables = [zonal_statistics(DEM, h3_cells.parse_cell(chunk.cell), RESOLUTION) for chunk in chunks]
    paths = [tmp_path / f"{chunk.cell}.parquet" for chunk in chunks]
    for table, path in zip(tables, paths, strict=True):
        cell_files.write(table, path)
    assert cell_files.concatenate(paths, tmp_path / "all.parquet") == sum(table.num_rows for table in tables)
    rows = pq.read_table(tmp_path / "all.parquet").to_pylist()
    cells = [row["h3_index"] for row in rows]
    assert all(first < second for first, second in pairwise(cells))
    with rasterio.open(DEM) as dataset:
        touched = h3_cells.cells_over(shapely.box(*dataset.bounds), RESOLUTION)
        assert set(cells) <= set(touched.tolist())
        values = dataset.read(1, masked=True)
        fine = values.astype(float).repeat(8, axis=0).repeat(8, axis=1)
        transform = dataset.transform * Affine.scale(1 / 8)
    assert sum(row["count"] for row in rows) == pytest.approx(values.count(), rel=1e-6), "each pixel counts once"
    for row in rows[:: len(rows) // 4]:
        inside = pixels_in(row["h3_index"], fine, transform)
        assert row["mean"] == pytest.approx(inside.mean(), rel=2e-3)
        assert row["min"] <= inside.min() <= inside.max() <= row["max"]


def pixels_in(cell: int, values: Any, transform: Any) -> Any:
    """The values whose centres are in the hexagon, whose corners come from another library."""
    ring = [(longitude, latitude) for latitude, longitude in h3.cell_to_boundary(f"{cell:x}")]
    rows, columns = np.indices(values.shape)
    x, y = transform * (columns + 0.5, rows + 0.5)
    return values[shapely.contains_xy(shapely.Polygon(ring), x, y)].compressed()


def test_hexagons_are_found_in_other_projections_and_bands(tmp_path: Path) -> None:
    values = np.stack([np.full((40, 40), 3, "float32"), np.full((40, 40), 5, "float32")])
    where = {"crs": "EPSG:32633", "transform": Affine(1000, 0, 480000, 0, -1000, 5300000), "nodata": -1}
    path = write_tiff(tmp_path / "utm.tif", values, **where)
    cells = [h3_cells.parse_cell(chunk.cell) for chunk in discover(path)]
    rows = [row for cell in cells for row in zonal_statistics(path, cell, 4, ["mean"], band=2).to_pylist()]
    assert {row["mean"] for row in rows} == {5.0}
    assert sum(row["count"] for row in rows) == pytest.approx(1600)
    with pytest.raises(Invalid, match="the raster has bands 1 to 2, not 3"):
        zonal_statistics(path, cells[0], 4, band=3)
    with pytest.raises(Invalid, match="from 3 to 9"):
        zonal_statistics(path, cells[0], 12)
    with pytest.raises(Invalid, match="no H3 cell of resolution 3"):
        h3_cells.parse_cell("872681fffffffff")


def test_cells_at_the_antimeridian_are_in_two_parts() -> None:
    cell = int(h3.latlng_to_cell(10.0, 180.0, 3), 16)
    [shape] = h3_cells.polygons(np.array([cell], np.uint64))
    west, _, east, _ = shape.bounds
    assert (west, east) == (-180, 180)
    assert shape.area < 2


def test_layers_are_counted_and_measured_by_hexagon(tmp_path: Path) -> None:
    for source in (GLACIERS, COUNTIES):
        layer_files.prepare(source, tmp_path / f"{source.stem}.parquet")
    points, areas = tmp_path / f"{GLACIERS.stem}.parquet", tmp_path / f"{COUNTIES.stem}.parquet"
    counted = layer_statistics.count_points(points, 5).to_pylist()
    places = shapely.get_coordinates(shapely.from_wkb(pq.read_table(points).column("geometry").to_numpy()))
    expected = [h3.latlng_to_cell(latitude, longitude, 5) for longitude, latitude in places]
    assert {f"{row['h3_index']:x}": row["count"] for row in counted} == {
        cell: expected.count(cell) for cell in expected
    }

    measured = layer_statistics.measure_polygons(areas, 3, "name").to_pylist()
    shapes = shapely.from_wkb(pq.read_table(areas).column("geometry").to_numpy())
    geod = Geod(ellps="WGS84")
    total = sum(abs(geod.geometry_area_perimeter(shape)[0]) for shape in shapes)
    assert sum(row["area_m2"] for row in measured) == pytest.approx(total, rel=1e-4)
    assert len({row["category"] for row in measured}) == 64
    with pytest.raises(VectorRejected, match="points only"):
        layer_statistics.count_points(areas, 5)
    with pytest.raises(VectorRejected, match="no column 'colour'; it has: glacier_id"):
        layer_statistics.count_points(points, 5, "colour")


def test_the_handlers_are_those_of_the_module() -> None:
    handlers = {entry.name for entry in registry if entry.function.__module__ == hexagons.__name__}
    assert handlers == {
        "h3_compaction",
        "h3_discover_raster",
        "h3_export_dataset",
        "h3_finalize",
        "h3_point_aggregation",
        "h3_polygon_aggregation",
        "h3_zonal_stats",
    }
    assert OPTIONAL_HANDLERS["h3_"] == (hexagons.__name__, "geo")
