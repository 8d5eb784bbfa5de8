"""Untrusted vector files are read by format, repaired, sorted and stored, or refused."""

import json
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from pmtiles.reader import MmapSource, Reader
from shapely.geometry import shape
from vectors import BOW_TIE, COUNTIES, GDALG, PARK, VRT, write_layer, zip_files, zip_shapefile

from dagmaster.geo.errors import UnreadableVector, VectorRejected
from dagmaster.geo.validation import CrsSource, Outcome
from dagmaster.geo.vector import derived, layer_files, reader, sorted_features
from dagmaster.geo.vector.archive import unpack
from dagmaster.geo.vector.cleaner import LayerCleaner, hilbert_distances
from dagmaster.geo.vector.columns import safe_names, simple_type, simplify_column
from dagmaster.geo.vector.crs import resolve_crs
from dagmaster.geo.vector.formats import Format
from dagmaster.geo.vector.layer_files import LayerFiles
from dagmaster.geo.vector.preview_tiles import choose_max_zoom
from dagmaster.geo.vector.reader import Layer, SourceFile, open_source, read_layer
from dagmaster.geo.vector.sorted_features import RowOrder, _divided, _ranges

POINTS = ["POINT (8 47)", "POINT (9 48)"]
NAMES = {"name": ["Zürich", "Köln"], "rank": pa.array([1, 2], pa.int32())}


def prepare(source: Path, **options: Any) -> tuple[LayerFiles, Any]:
    target = source.parent / "made" / f"{source.stem}.parquet"
    files = layer_files.prepare(source, target, **options)
    return files, pq.read_table(target)


def shapes_of(table: Any) -> Any:
    return shapely.from_wkb(table.column("geometry").to_numpy())


def rows_of(path: Path, folder: Path, layer: str | None = None) -> tuple[SourceFile, str | None, list[tuple[Any, ...]]]:
    source = open_source(path, folder)
    with read_layer(source, layer) as read:
        table = pa.Table.from_batches(list(read.batches), read.schema)
        places = shapely.to_wkt(shapely.force_2d(shapely.from_wkb(table.column(read.geometry).to_numpy())))
        names = table.column("name" if "name" in table.column_names else "Name").to_pylist()
        return source, read.crs, sorted(zip(names, places, strict=True))


def file_of(kind: Format, folder: Path) -> Path:
    """Two named points."""
    match kind:
        case Format.SHAPEFILE:
            path = write_layer(
                folder / "a.shp", POINTS, NAMES, driver="ESRI Shapefile", geometry_type="Point", encoding="UTF-8"
            )
            return zip_shapefile(path, folder / "a.zip", "deep/er/")
        case Format.GEOPACKAGE:
            return write_layer(folder / "a.gpkg", POINTS, NAMES, driver="GPKG")
        case Format.GEOJSON:
            return write_layer(folder / "a.geojson", POINTS, NAMES, driver="GeoJSON")
        case Format.FLATGEOBUF:
            return write_layer(folder / "a.fgb", POINTS, NAMES, driver="FlatGeobuf", geometry_type="Point")
        case Format.KML:
            return write_layer(folder / "a.kml", POINTS, NAMES, driver="LIBKML")
        case Format.CSV:
            text = "name;rank;lat;lon\nZürich;1;47;8\nKöln;2;48;9\n"
            (folder / "a.csv").write_text(text, encoding="ISO-8859-1")
            return folder / "a.csv"
        case Format.FILE_GEODATABASE:
            path = write_layer(folder / "a.gdb", POINTS, NAMES, driver="OpenFileGDB", geometry_type="Point")
            return zip_files(folder / "a.zip", {f"x/a.gdb/{part.name}": part for part in path.iterdir()})
        case _:
            files, _ = prepare(write_layer(folder / "a.geojson", POINTS, NAMES, driver="GeoJSON"))
            assert files.report.format is Format.GEOJSON
            return folder / "made" / "a.parquet"


@pytest.mark.parametrize("kind", list(Format))
def test_every_format_has_the_same_features(kind: Format, tmp_path: Path) -> None:
    source, crs, rows = rows_of(file_of(kind, tmp_path), tmp_path / "work")
    assert rows == [("Köln", "POINT (9 48)"), ("Zürich", "POINT (8 47)")]
    assert source.kind is kind
    if kind is Format.CSV:
        assert (crs, source.encoding) == (None, "ISO-8859-1")
        assert "not in UTF-8" in source.warnings[0]
    else:
        assert resolve_crs(crs, "EPSG:4326").to_wgs84 is None
        assert source.warnings == ()


def test_a_real_layer_is_converted_to_sorted_geoparquet_with_tiles(tmp_path: Path) -> None:
    source = tmp_path / COUNTIES.name
    source.write_bytes(COUNTIES.read_bytes())
    files, table = prepare(source, chunk_rows=20)
    report = files.report
    assert (report.outcome, report.crs_source, report.geometry_types) == (Outcome.ACCEPTED, CrsSource.FILE, ["Polygon"])
    assert [(chunk.first_row, chunk.rows) for chunk in files.chunks] == [(0, 20), (20, 20), (40, 20), (60, 4)]

    features = json.loads(COUNTIES.read_text())["features"]
    expected = {feature["properties"]["name"]: shape(feature["geometry"]) for feature in features}
    stored = dict(zip(table.column("name").to_pylist(), shapes_of(table), strict=True))
    assert stored.keys() == expected.keys()
    assert all(stored[name].equals_exact(expected[name]) for name in expected)
    assert report.bbox == pytest.approx(shapely.total_bounds(list(expected.values())))

    check_geoparquet(tmp_path / "made" / "colorado-counties.parquet", table)
    check_tiles(tmp_path / "made" / "colorado-counties.pmtiles", files)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "colorado-counties.parquet",
        "colorado-counties.pmtiles",
    ]


def check_geoparquet(path: Path, table: Any) -> None:
    geo = json.loads(pq.read_schema(path).metadata[b"geo"])
    column = geo["columns"][geo["primary_column"]]
    assert (geo["version"], column["encoding"], column["geometry_types"]) == ("1.1.0", "WKB", ["Polygon"])
    assert column["crs"]["id"] == {"authority": "OGC", "code": "CRS84"}
    assert column["covering"]["bbox"]["ymax"] == ["bbox", "ymax"]
    boxes = [tuple(box.values()) for box in table.column("bbox").to_pylist()]
    assert boxes == [shape.bounds for shape in shapes_of(table)]
    middles = np.array([((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) for box in boxes])
    assert (np.diff(hilbert_distances(*middles.T).astype(np.int64)) >= 0).all()


def check_tiles(path: Path, files: LayerFiles) -> None:
    with path.open("rb") as file:
        reader = Reader(MmapSource(file))
        header = reader.header()
        assert (header["min_zoom"], header["max_zoom"]) == (0, files.preview.max_zoom)
        assert [layer["id"] for layer in reader.metadata()["vector_layers"]] == ["features"]
        assert reader.get(0, 0, 0)
        assert reader.get(5, 6, 12), "Colorado"
        assert reader.get(5, 16, 16) is None


def test_a_shapefile_with_a_wrong_encoding_is_decoded_from_its_bytes(tmp_path: Path) -> None:
    path = write_layer(
        tmp_path / "a.shp", POINTS, NAMES, driver="ESRI Shapefile", geometry_type="Point", encoding="ISO-8859-1"
    )
    parts = {part.name: part for part in tmp_path.glob("a.*")}
    lying = zip_files(tmp_path / "lying.zip", {**parts, "a.cpg": b"UTF-8"})
    source, _, rows = rows_of(lying, tmp_path / "work")
    assert [name for name, _ in rows] == ["Köln", "Zürich"]
    assert source.encoding == "ISO-8859-1"
    assert path.with_suffix(".cpg").read_text() == "ISO-8859-1"


def test_broken_shapes_are_repaired_flattened_and_counted(tmp_path: Path) -> None:
    shapes = [
        BOW_TIE,
        "POLYGON Z ((10 10 1, 11 10 1, 11 11 1, 10 10 1))",
        "MULTIPOLYGON (((20 20, 21 20, 21 21, 20 20)))",
        "POLYGON ((5 5, 6 6, 5 5, 6 6, 5 5))",
        "POLYGON EMPTY",
        "POLYGON ((100 95, 101 95, 101 96, 100 95))",
    ]
    source = write_layer(tmp_path / "bad.gpkg", shapes, {"geometry_": list("abcdef")}, driver="GPKG")
    files, table = prepare(source)
    counts = files.report.features
    assert (counts.read, counts.kept, counts.repaired, counts.flattened) == (6, 3, 1, 1)
    assert (counts.collapsed, counts.without_geometry, counts.off_the_globe) == (1, 1, 1)
    assert files.report.outcome is Outcome.ACCEPTED_WITH_WARNINGS
    assert files.report.geometry_types == ["MultiPolygon"]
    stored = dict(zip(table.column("geometry_").to_pylist(), shapes_of(table), strict=True))
    assert stored["a"].equals(shapely.from_wkt("MULTIPOLYGON (((0 0, 0 2, 1 1, 0 0)), ((1 1, 2 2, 2 0, 1 1)))"))
    assert all(shape.is_valid and not shape.has_z for shape in stored.values())


def test_layers_at_the_edges_of_the_map_are_kept_and_warned_of(tmp_path: Path) -> None:
    shapes = [
        "POLYGON ((179 10, 181 10, 181 11, 179 11, 179 10))",
        "POLYGON ((-179 10, 179 10, 179 11, -179 11, -179 10))",
        "POINT (0 90)",
        "POINT (0 -90)",
    ]
    files, table = prepare(write_layer(tmp_path / "edges.gpkg", shapes, driver="GPKG"))
    assert (files.report.features.kept, files.report.features.wide) == (4, 1)
    assert files.report.outcome is Outcome.ACCEPTED_WITH_WARNINGS
    assert any("antimeridian" in warning for warning in files.report.warnings)
    assert files.report.bbox == (-179, -90, 181, 90)
    assert {shape.wkt for shape in shapes_of(table)} == {shapely.from_wkt(text).wkt for text in shapes}


def test_layers_are_transformed_with_a_known_accuracy(tmp_path: Path) -> None:
    source = write_layer(tmp_path / "uk.gpkg", ["POINT (530000 180000)"], driver="GPKG", crs="EPSG:27700")
    files, table = prepare(source)
    [point] = shapes_of(table)
    assert (point.x, point.y) == pytest.approx((-0.1286, 51.5037), abs=0.001), "London"
    assert files.report.crs == "EPSG:27700"
    assert files.report.accuracy_metres == 2
    assert any("exact to 2 m; a grid file" in warning for warning in files.report.warnings)


def test_the_crs_is_required_and_must_not_contradict_the_file() -> None:
    assert resolve_crs(None, "EPSG:4326").source is CrsSource.ASSIGNED
    assert resolve_crs("EPSG:4326", "OGC:CRS84").source is CrsSource.CONFIRMED
    assert resolve_crs("EPSG:3857", None).accuracy_metres == 0
    for in_file, assigned, problem in (
        (None, None, "none was given"),
        ("EPSG:3857", "EPSG:4326", "correct one of the two"),
        (None, "EPSG:0", "no CRS that PROJ knows"),
    ):
        with pytest.raises(VectorRejected, match=problem):
            resolve_crs(in_file, assigned)


def test_a_file_that_is_not_a_layer_is_rejected_with_the_reason(tmp_path: Path) -> None:
    empty = write_layer(tmp_path / "empty.gpkg", [], driver="GPKG")
    with pytest.raises(VectorRejected, match="the layer has no features"):
        prepare(empty)
    write_layer(empty, POINTS, driver="GPKG", layer="second", append=True)
    with pytest.raises(UnreadableVector, match="has 2 layers with geometries; choose one with `layer`: empty, second"):
        prepare(empty)
    with pytest.raises(UnreadableVector, match="has no layer 'third'"):
        prepare(empty, layer="third")
    (tmp_path / "plain.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UnreadableVector, match="name the columns lon and lat"):
        prepare(tmp_path / "plain.csv", assigned_crs="EPSG:4326")
    damaged = tmp_path / "damaged.fgb"
    damaged.write_bytes(b"fgb\x03fgb\x00" + b"\xff" * 100)
    with pytest.raises(UnreadableVector, match=r"damaged\.fgb"):
        prepare(damaged)
    assert not list((tmp_path / "made").glob(".*"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.geojson", VRT),
        ("a.geojson", '{"type": "gdal_streamed_alg", "command_line": "gdal vector pipeline ! read /etc/passwd"}'),
        ("a.kml", VRT),
        ("a.csv", VRT),
        ("a.gpkg", VRT),
        ("a.shp", VRT),
        ("a.fgb", GDALG),
        ("a.vrt", VRT),
        ("a.gdb", VRT),
    ],
)
def test_files_that_reference_others_are_refused_by_content(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UnreadableVector):
        open_source(tmp_path / name, tmp_path / "work")


@pytest.mark.parametrize("content", [VRT, GDALG], ids=["vrt", "gdalg"])
def test_a_text_file_with_a_valid_signature_finds_no_driver(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a.geojson"
    path.write_text(content)
    with (
        pytest.raises(UnreadableVector, match="not recognized as being in a supported file format"),
        read_layer(SourceFile(path, Format.GEOJSON, "UTF-8")),
    ):
        pass


def test_the_size_of_archives_is_limited(tmp_path: Path) -> None:
    bomb = zip_files(tmp_path / "bomb.zip", {"a.csv": b"0" * 70_000_000})
    with pytest.raises(UnreadableVector, match=r"is refused: a\.csv unpacks to 70000000 bytes"):
        unpack(bomb, tmp_path / "out")
    with pytest.raises(UnreadableVector, match="the limits are"):
        unpack(bomb, tmp_path / "out", max_bytes=1000)
    small = zip_files(tmp_path / "small.zip", {"a.csv": b"0" * 1000})
    content = small.read_bytes()
    # The sizes in both headers of the archive.
    small.write_bytes(content.replace(struct.pack("<L", 1000), struct.pack("<L", 10)))
    with pytest.raises(UnreadableVector, match="cannot be unpacked"):
        unpack(small, tmp_path / "out")
    assert not (tmp_path / "out").exists() or sum(part.stat().st_size for part in (tmp_path / "out").iterdir()) <= 10


def test_archives_contain_one_layer_and_no_paths_outside(tmp_path: Path) -> None:
    with pytest.raises(UnreadableVector, match=r"it holds: a.gpkg, b.gpkg"):
        unpack(zip_files(tmp_path / "two.zip", {"a.gpkg": b"", "b.gpkg": b""}), tmp_path / "out")
    with pytest.raises(UnreadableVector, match="it holds: none"):
        unpack(zip_files(tmp_path / "none.zip", {"readme.txt": b"", "__MACOSX/a.shp": b""}), tmp_path / "out")
    climbing = zip_files(tmp_path / "up.zip", {"../../up.gpkg": b"x", "notes.csv": b"", "meta.json": b""})
    assert unpack(climbing, tmp_path / "out") == tmp_path / "out" / "up.gpkg"
    assert not (tmp_path.parent / "up.gpkg").exists()
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04" + bytes(50))
    with pytest.raises(UnreadableVector, match="cannot be unpacked"):
        unpack(tmp_path / "broken.zip", tmp_path / "out")


def test_column_names_are_valid_in_every_output() -> None:
    assert safe_names(["name", "NAME", "", "geometry", "a\tb", "bbox"]) == [
        "name",
        "NAME_2",
        "column_3",
        "geometry_2",
        "a_b",
        "bbox_2",
    ]
    long = safe_names(["ü" * 60, "ü" * 61])
    assert [len(name.encode()) for name in long] == [62, 62]
    assert long[1].endswith("_2")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pa.array([[1, 2], None]), pa.string(), ["[1, 2]", None]),
        (pa.array(["a\0b"]), pa.string(), ["ab"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), pa.string(), ["a", "b", "a"]),
        (pa.array([1], pa.uint16()), pa.int32(), [1]),
        (pa.array([1], pa.uint32()), pa.int64(), [1]),
        (pa.array([None], pa.null()), pa.string(), [None]),
        (pa.array([1.5], pa.float16()), pa.float32(), [1.5]),
    ],
)
def test_columns_get_types_that_every_output_supports(values: Any, kind: Any, expected: list[Any]) -> None:
    assert simple_type(values.type) == kind
    assert simplify_column(values, kind).to_pylist() == expected


def test_values_that_no_output_supports_are_rejected_with_their_column() -> None:
    crs = resolve_crs("EPSG:4326", None)
    point = pa.array([shapely.to_wkb(shapely.Point(8, 47))])
    no_text = pa.array([b"\xff"]).view(pa.string())
    for values in (pa.array([2**63], pa.uint64()), no_text):
        batch = pa.record_batch({"size": values, "geometry": point})
        with pytest.raises(VectorRejected, match="the column 'size' has values that cannot be stored"):
            LayerCleaner(batch.schema, "geometry", crs).clean(batch)


def test_the_hilbert_curve_is_correct() -> None:
    random = np.random.default_rng(1)
    longitudes, latitudes = random.uniform(-180, 180, 50), random.uniform(-90, 90, 50)
    expected = [walk(*place) for place in zip(longitudes, latitudes, strict=True)]
    assert hilbert_distances(longitudes, latitudes).tolist() == expected
    assert hilbert_distances([-200], [-100]).tolist() == [0]


def walk(longitude: float, latitude: float) -> int:
    """The usual loop over the bits of a position."""
    x, y = int((longitude + 180) / 360 * 2**31), int((latitude + 90) / 180 * 2**31)
    distance, side = 0, 2**30
    while side:
        right, upper = int(bool(x & side)), int(bool(y & side))
        distance += side * side * ((3 * right) ^ upper)
        if not upper:
            if right:
                x, y = 2**31 - 1 - x, 2**31 - 1 - y
            x, y = y, x
        side //= 2
    return distance


def test_chunks_are_limited_by_rows_and_bytes() -> None:
    assert list(_ranges(np.array([10] * 5), 2, 1000)) == [(0, 2), (2, 4), (4, 5)]
    assert list(_ranges(np.array([10, 10, 500, 10]), 100, 20)) == [(0, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize("variety", [1, 3, 50, 2**62])
def test_rows_are_ordered_by_runs_as_if_they_were_sorted_at_once(tmp_path: Path, variety: int) -> None:
    random = np.random.default_rng(variety % 1000)
    keys = random.integers(0, variety, 500, dtype=np.uint64)
    order = RowOrder(tmp_path / "order.bin", run_rows=64)
    for first in range(0, 500, 30):
        part = keys[first : first + 30]
        order.add(part, np.arange(first, first + len(part)) * 2)
    order.close()
    parts = list(order.parts())
    rows = np.concatenate([rows for rows, _ in parts])
    np.testing.assert_array_equal(rows, np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(np.concatenate([sizes for _, sizes in parts]), rows * 2)
    assert max(len(rows) for rows, _ in parts) <= 64


def test_chunks_have_rows_of_several_runs() -> None:
    parts = [(np.arange(first, first + 7), np.full(7, 10)) for first in (0, 7, 14)]
    assert [rows.tolist() for rows in _divided(parts, 5, 1000)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11, 12, 13, 14],
        [15, 16, 17, 18, 19],
        [20],
    ]
    assert [len(rows) for rows in _divided(parts, 100, 45)] == [4, 4, 4, 4, 4, 1]
    assert list(_divided([], 5, 1000)) == []


def test_a_layer_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches and chunks there are, each is let go of when the next one is made."""
    alive: list[weakref.ref[Any]] = []
    made, most = Counter[str](), Counter[str]()

    def counting(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            table = make(*arguments)
            alive[:] = [other for other in alive if other() is not None]
            alive.append(weakref.ref(table))
            made[name] += 1
            most[name] = max(most[name], len(alive))
            return table

        return counted

    @contextmanager
    def read_in_small_batches(source: SourceFile, layer: str | None) -> Iterator[Layer]:
        with read_layer(source, layer) as read:
            batches = (batch.slice(first, 10) for batch in read.batches for first in range(0, batch.num_rows, 10))
            yield replace(read, batches=batches)

    monkeypatch.setattr(layer_files, "read_layer", read_in_small_batches)
    monkeypatch.setattr(LayerCleaner, "clean", counting("batches", LayerCleaner.clean))
    monkeypatch.setattr(sorted_features, "_take", counting("chunks", sorted_features._take))
    points = [f"POINT ({number % 360 - 180} {number % 90})" for number in range(300)]
    source = write_layer(tmp_path / "many.fgb", points, driver="FlatGeobuf", geometry_type="Point")
    files, table = prepare(source, chunk_rows=20)
    assert (table.num_rows, files.report.features.kept) == (300, 300)
    assert made == {"batches": 30, "chunks": 15}
    assert max(most.values()) <= 2


def test_previews_end_at_an_affordable_zoom() -> None:
    assert choose_max_zoom(np.array([[8.0, 47.0, 8.0, 47.0]])) == 14
    world = np.array([[-180.0, -90.0, 180.0, 90.0]])
    assert choose_max_zoom(world) == 5
    assert choose_max_zoom(np.repeat(world, 50_000, axis=0)) == 1


def test_layers_can_be_simplified_and_dissolved(tmp_path: Path) -> None:
    source = tmp_path / COUNTIES.name
    source.write_bytes(COUNTIES.read_bytes())
    files, table = prepare(source)
    path = tmp_path / "made" / "colorado-counties.parquet"
    derived.simplify(path, tmp_path / "simple.parquet", 5000)
    simple, before = shapes_of(pq.read_table(tmp_path / "simple.parquet")), shapes_of(table)
    assert shapely.get_num_coordinates(simple).sum() < shapely.get_num_coordinates(before).sum() / 2
    assert shapely.hausdorff_distance(simple, before).max() < 5000 / 80_000, "a degree of longitude has 80 km there"

    derived.dissolve(path, tmp_path / "states.parquet", ["state_name"])
    [state] = pq.read_table(tmp_path / "states.parquet").to_pylist()
    assert (state["state_name"], state["feature_count"]) == ("Colorado", files.report.features.kept)
    assert shapely.from_wkb(state["geometry"]).area == pytest.approx(shapely.area(before).sum(), rel=1e-3)
    derived.dissolve(path, tmp_path / "all.parquet", [])
    assert pq.read_table(tmp_path / "all.parquet").num_rows == 1
    with pytest.raises(VectorRejected, match="no column colour; it has: statefp"):
        derived.dissolve(path, tmp_path / "x.parquet", ["colour"])
    with pytest.raises(UnreadableVector, match="not a GeoParquet file"):
        derived.simplify(PARK, tmp_path / "x.parquet", 1)


@pytest.mark.parametrize("garbage", [b"\0", b"x"])
def test_a_reader_that_writes_no_arrow_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, garbage: bytes
) -> None:
    """More than the pipe holds: without a reader, the process would never end."""
    monkeypatch.setattr(reader, "_PROGRAM", f"import sys; sys.stdout.buffer.write({garbage!r} * 2**20)")
    source = SourceFile(tmp_path / "a.geojson", Format.GEOJSON, "UTF-8")
    with pytest.raises(UnreadableVector, match=r"^a.geojson cannot be read: "), read_layer(source):
        pass
