"""Statistics by hexagon, of a real raster and of layers, compared with independent computations."""

from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

import h3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rasterio
import shapely
from affine import Affine
from pyproj import Geod
from rasters import DEM, write_tiff
from vectors import COUNTIES, GLACIERS, TRAIL, write_layer

from dagmaster.errors import Invalid
from dagmaster.geo.errors import VectorRejected
from dagmaster.geo.hexagons import cell_files, layer_statistics
from dagmaster.geo.hexagons import cells as h3_cells
from dagmaster.geo.hexagons.connectivity import accumulate_cost
from dagmaster.geo.hexagons.raster_statistics import discover, zonal_statistics
from dagmaster.geo.vector import layer_files
from dagmaster.handlers import HandlerContext, call, hexagons, registry
from dagmaster.model.optional_handlers import OPTIONAL_HANDLERS

RESOLUTION = 6


def test_chunks_together_contain_every_hexagon_with_its_weighted_mean(tmp_path: Path) -> None:
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


def test_hexagons_are_computed_in_other_projections_and_bands(tmp_path: Path) -> None:
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


def test_cells_at_the_antimeridian_are_split_in_two() -> None:
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


def test_lines_are_measured_and_layers_found_by_hexagon(tmp_path: Path) -> None:
    layer_files.prepare(TRAIL, tmp_path / "trail.parquet")
    trail = tmp_path / "trail.parquet"
    measured = layer_statistics.measure_lines(trail, 5).to_pylist()
    shapes = shapely.from_wkb(pq.read_table(trail).column("geometry").to_numpy())
    total = sum(Geod(ellps="WGS84").geometry_length(shape) for shape in shapes)
    assert sum(row["length_m"] for row in measured) == pytest.approx(total, rel=1e-6)
    corners = {h3.latlng_to_cell(latitude, longitude, 5) for longitude, latitude in shapely.get_coordinates(shapes)}
    present = layer_statistics.find_presence(trail, 5).to_pylist()
    assert corners <= {f"{row['h3_index']:x}" for row in present}
    assert {row["h3_index"] for row in present} == {row["h3_index"] for row in measured}
    with pytest.raises(VectorRejected, match="polygons only"):
        layer_statistics.average_by_area(trail, 5, ["x"])


def test_values_of_polygons_are_weighted_by_area(tmp_path: Path) -> None:
    """Two halves of a country: the value of the only one present, and at the border a mean weighted by area."""
    halves = ["POLYGON ((7 46, 8 46, 8 47, 7 47, 7 46))", "POLYGON ((8 46, 9 46, 9 47, 8 47, 8 46))"]
    columns = {"rain": [10.0, 30.0], "snow": [None, 4.0], "name": ["w", "e"]}
    source = write_layer(tmp_path / "halves.geojson", halves, columns, driver="GeoJSON")
    layer_files.prepare(source, tmp_path / "halves.parquet")
    rows = layer_statistics.average_by_area(tmp_path / "halves.parquet", 4, ["rain", "snow"]).to_pylist()
    west, east = (shapely.from_wkt(text) for text in halves)
    geod = Geod(ellps="WGS84")
    for row in rows:
        ring = [(lng, lat) for lat, lng in h3.cell_to_boundary(f"{row['h3_index']:x}")]
        parts = [abs(geod.geometry_area_perimeter(shapely.Polygon(ring) & half)[0]) for half in (west, east)]
        assert row["rain"] == pytest.approx((10 * parts[0] + 30 * parts[1]) / sum(parts), rel=1e-6)
        assert row["area_m2"] == pytest.approx(sum(parts), rel=1e-6)
        assert row["snow"] == (pytest.approx(4.0) if parts[1] else None)
    assert 10 < min(row["rain"] for row in rows if 10 < row["rain"] < 30) < 30
    with pytest.raises(VectorRejected, match="no column 'name' of numbers; those are: rain, snow"):
        layer_statistics.average_by_area(tmp_path / "halves.parquet", 4, ["name"])


def test_the_cheapest_path_equals_that_of_a_plain_search(tmp_path: Path) -> None:
    centre = h3.latlng_to_cell(46.5, 8.0, 6)
    cells = sorted(h3.grid_disk(centre, 8))
    friction = {cell: 1.0 + (int(cell, 16) >> 20) % 7 for cell in cells}
    wall = set(cells[::9]) - {centre}
    island = h3.latlng_to_cell(0.0, 0.0, 6)
    values = {**friction, **dict.fromkeys(wall, 0.0), island: 1.0}
    path = tmp_path / "friction.parquet"
    pq.write_table(
        pa.table({"h3_index": pa.array([int(cell, 16) for cell in values], pa.uint64()), "f": list(values.values())}),
        path,
    )
    sources = [centre, min(set(cells) - wall)]
    made = {f"{row['h3_index']:x}": row for row in accumulate_cost(path, "f", sources).to_pylist()}
    expected = search({cell: cost for cell, cost in friction.items() if cell not in wall}, sources)
    assert made.keys() == expected.keys()
    assert all(made[cell]["cost"] == pytest.approx(cost, rel=1e-9) for cell, cost in expected.items())
    assert {f"{row['source']:x}" for row in made.values()} == set(sources)
    assert made[centre]["cost"] == 0
    with pytest.raises(Invalid, match="is no cell of the file that can be entered"):
        accumulate_cost(path, "f", [min(wall)])


def search(friction: dict[str, float], sources: list[str]) -> dict[str, float]:
    """Textbook Dijkstra."""
    geod, costs = Geod(ellps="WGS84"), dict[str, float]()
    waiting = [(0.0, source) for source in sources]
    while waiting:
        cost, cell = heappop(waiting)
        if cell in costs:
            continue
        costs[cell] = cost
        for other in set(h3.grid_disk(cell, 1)) & friction.keys() - costs.keys():
            (lat, lng), (other_lat, other_lng) = h3.cell_to_latlng(cell), h3.cell_to_latlng(other)
            metres = geod.inv(lng, lat, other_lng, other_lat)[2]
            heappush(waiting, (cost + metres * (friction[cell] + friction[other]) / 2, other))
    return costs


async def test_handlers_store_their_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    storage = tmp_path / "storage"
    (storage / "silver").mkdir(parents=True)
    square = "POLYGON ((7 46, 7.2 46, 7.2 46.2, 7 46.2, 7 46))"
    source = write_layer(tmp_path / "square.geojson", [square], {"rain": [3.0], "snow": [1.0]}, driver="GeoJSON")
    layer_files.prepare(source, storage / "silver" / "square.parquet")

    async def made(name: str, **params: Any) -> tuple[str, Any]:
        ids: dict[str, Any] = {"task_id": "7_a_0", "job_id": 7, "node_id": "a", "handler": name}
        result = await call(registry.get(name), HandlerContext(**ids, params=params), executor=None)
        assert result.output is not None, result.error_message
        return result.output["blob_path"], pq.read_table(storage / result.output["blob_path"])

    layer = {"path": "silver/square.parquet", "resolution": 6}
    _, present = await made("h3_binary_intersect", **layer)
    _, weighted = await made("h3_weighted_aggregation", **layer, column="rain")
    assert weighted.column("rain").to_pylist() == pytest.approx([3.0] * weighted.num_rows)
    assert set(weighted.column("h3_index").to_pylist()) <= set(present.column("h3_index").to_pylist())
    _, both = await made("h3_multi_weighted_aggregation", **layer, columns=["rain", "snow"], target="silver/b.parquet")
    assert both.column_names == ["h3_index", "rain", "snow", "area_m2"]
    start = f"{weighted.column('h3_index')[0].as_py():x}"
    place, reached = await made("h3_connectivity", path="silver/b.parquet", column="rain", sources=[start])
    assert (reached.num_rows, place) == (both.num_rows, "silver/h3_stats/vector=b/7/cost.parquet")


def test_the_registered_handlers_are_those_of_the_module() -> None:
    handlers = {entry.name for entry in registry if entry.function.__module__ == hexagons.__name__}
    assert handlers == {
        "h3_binary_intersect",
        "h3_compaction",
        "h3_connectivity",
        "h3_discover_raster",
        "h3_export_dataset",
        "h3_finalize",
        "h3_line_aggregation",
        "h3_multi_weighted_aggregation",
        "h3_point_aggregation",
        "h3_polygon_aggregation",
        "h3_weighted_aggregation",
        "h3_zonal_stats",
    }
    assert OPTIONAL_HANDLERS["h3_"] == (hexagons.__name__, "geo")
