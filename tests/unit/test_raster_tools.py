"""Tiles, mosaics, clips and zonal statistics, as functions of files and as handlers."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import rasterio
from affine import Affine
from rasterio.enums import ColorInterp
from rasters import DEM, NORTH_UP, VRT, write_tiff
from rio_cogeo.cogeo import cog_validate
from shapely import Polygon, box
from shapely.geometry import mapping

from dagmaster.geo.errors import RasterRejected, UnreadableRaster
from dagmaster.geo.raster import tiling
from dagmaster.geo.raster.image import ImageSource, clip_to_bbox, clip_to_geometry, resolve_image
from dagmaster.geo.raster.mosaic import arrange, choose_pool_size
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.tiling import divide_into_tiles, write_tile
from dagmaster.geo.raster.writer import write_cog
from dagmaster.geo.raster.zonal import zonal_statistics
from dagmaster.handlers import Checkpoint, HandlerContext, HandlerResult, call, raster, registry
from dagmaster.storage import Storage
from dagmaster.storage.storage import Copied

assert raster.MAX_ITEMS  # imported for the handlers that it registers

LOSSLESS = Profile(compression="ZSTD", level=1, predictor=2, resampling="nearest", overview_resampling="average")


def numbers(dtype: str = "int16") -> Any:
    return np.arange(1, 48 * 64 + 1).reshape(48, 64).astype(dtype)


def cog_of(source: ImageSource, folder: Path) -> Path:
    target = folder / "made.tif"
    write_cog(source, target, LOSSLESS, folder / "superblocks")
    assert cog_validate(target, strict=True)[0]
    return target


def quarters(folder: Path, values: Any = None, **profile: Any) -> list[Path]:
    """The four quarters of an image as files."""
    values = numbers() if values is None else values
    return [
        write_tiff(
            folder / f"{row}-{column}.tif",
            values[..., row : row + 24, column : column + 32],
            transform=NORTH_UP * Affine.translation(column, row),
            **profile,
        )
        for row in (0, 24)
        for column in (0, 32)
    ]


# Mosaics.


def test_windows_of_an_image_are_merged_to_the_image(tmp_path: Path) -> None:
    for name, profile in (("a", {}), ("b", {"nodata": 7})):
        folder = tmp_path / name
        folder.mkdir()
        path = cog_of(resolve_image(arrange(quarters(folder, **profile)), "nearest"), folder)
        with rasterio.open(path) as joined:
            np.testing.assert_array_equal(joined.read(1), numbers())
            assert joined.transform.almost_equals(NORTH_UP)
            assert joined.nodata == profile.get("nodata")
            assert joined.dataset_mask().all() == (name == "a")


def test_the_later_file_is_on_top_except_for_nodata(tmp_path: Path) -> None:
    below = write_tiff(tmp_path / "a.tif", np.full((10, 10), 1, "uint8"), nodata=0)
    values = np.full((10, 10), 2, "uint8")
    values[:5] = 0
    above = write_tiff(tmp_path / "b.tif", values, nodata=0, transform=NORTH_UP * Affine.translation(5, 0))
    with rasterio.open(cog_of(resolve_image(arrange([below, above]), "nearest"), tmp_path)) as joined:
        assert joined.read(1)[0].tolist() == [1] * 10 + [0] * 5
        assert joined.read(1)[9].tolist() == [1] * 5 + [2] * 10


def test_gaps_without_a_nodata_value_are_masked(tmp_path: Path) -> None:
    first, _, _, last = quarters(tmp_path)
    with rasterio.open(cog_of(resolve_image(arrange([first, last]), "nearest"), tmp_path)) as joined:
        expected = np.zeros((48, 64), "uint8")
        expected[:24, :32] = expected[24:, 32:] = 255
        np.testing.assert_array_equal(joined.dataset_mask(), expected)
        np.testing.assert_array_equal(joined.read(1)[expected > 0], numbers()[expected > 0])


def test_palettes_and_band_names_are_kept(tmp_path: Path) -> None:
    files = quarters(tmp_path, numbers("uint8"))
    for file in files:
        with rasterio.open(file, "r+") as dataset:
            dataset.write_colormap(1, {3: (9, 8, 7, 255)})
            dataset.set_band_description(1, "cover")
    with rasterio.open(cog_of(resolve_image(arrange(files), "nearest"), tmp_path)) as joined:
        assert (joined.colorinterp, joined.descriptions) == ((ColorInterp.palette,), ("cover",))
        assert joined.colormap(1)[3] == (9, 8, 7, 255)


def test_a_mosaic_is_reprojected_in_one_pass(tmp_path: Path) -> None:
    whole = write_tiff(tmp_path / "whole.tif", numbers(), nodata=0)
    source = resolve_image(arrange(quarters(tmp_path, nodata=0)), "nearest", target_crs="EPSG:3857")
    single = resolve_image(whole, "nearest", target_crs="EPSG:3857")
    (tmp_path / "single").mkdir()
    path, expected = cog_of(source, tmp_path), cog_of(single, tmp_path / "single")
    with rasterio.open(path) as joined, rasterio.open(expected) as alone:
        np.testing.assert_array_equal(joined.read(), alone.read())
        assert joined.transform == alone.transform


def test_files_with_other_grids_are_refused_with_all_reasons(tmp_path: Path) -> None:
    first = write_tiff(tmp_path / "first.tif", numbers())
    beside = write_tiff(tmp_path / "beside.tif", numbers(), transform=NORTH_UP * Affine.translation(0.5, 0))
    other = write_tiff(tmp_path / "other.tif", numbers("float32"), nodata=3, crs="EPSG:32632")
    with pytest.raises(RasterRejected) as refused:
        arrange([first, beside, other])
    message = str(refused.value)
    assert "beside.tif is not on the grid of first.tif: it is 0.500 px beside it" in message
    for problem in ("in CRS: EPSG:32632", "in bands or types: ['float32']", "in nodata: 3.0 instead of None"):
        assert problem in message
    (tmp_path / "vrt.tif").write_text(VRT)
    with pytest.raises(UnreadableRaster, match="is not a TIFF file"):
        arrange([first, tmp_path / "vrt.tif"])


@pytest.mark.parametrize(
    "files, limit, size",
    [(1, 1024, 400), (450, 1024, 450), (5000, 1024, 512), (5000, -1, 1000), (5000, 1 << 20, 1000), (9, 3, 2)],
)
def test_gdal_keeps_all_files_open_where_it_may(
    monkeypatch: pytest.MonkeyPatch, files: int, limit: int, size: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert choose_pool_size(files) == size


# Clips.


def test_a_box_selects_whole_pixels(tmp_path: Path) -> None:
    source = resolve_image(write_tiff(tmp_path / "a.tif", numbers()), "nearest")
    path = cog_of(clip_to_bbox(source, (10.1, 49.8, 10.204, 49.9)), tmp_path)
    with rasterio.open(path) as clipped:
        np.testing.assert_array_equal(clipped.read(1), numbers()[10:20, 10:21])
        assert clipped.transform.almost_equals(NORTH_UP * Affine.translation(10, 10))
    with pytest.raises(RasterRejected, match="does not touch the raster"):
        clip_to_bbox(source, (0, 0, 1, 1))
    with pytest.raises(RasterRejected, match="west, south, east, north"):
        clip_to_bbox(source, (10.2, 49.8, 10.1, 49.9))


@pytest.mark.parametrize("kind", ["nodata", "mask", "alpha"])
def test_pixels_outside_a_polygon_are_masked(tmp_path: Path, kind: str) -> None:
    values = np.stack([numbers("uint8")] * 3 + [np.full((48, 64), 255, "uint8")]) if kind == "alpha" else numbers()
    kinds: dict[str, dict[str, Any]] = {"nodata": {"nodata": -5}, "alpha": {"photometric": "RGB", "alpha": "YES"}}
    source = resolve_image(write_tiff(tmp_path / "a.tif", values, **kinds.get(kind, {})), "nearest")
    triangle = Polygon([(10.1, 49.9), (10.3, 49.9), (10.1, 49.7)])
    path = cog_of(clip_to_geometry(source, mapping(triangle)), tmp_path)
    with rasterio.open(path) as clipped:
        assert clipped.shape == (20, 20)
        mask, expected = clipped.dataset_mask() > 0, np.tri(20, 20, -1, bool)[:, ::-1]
        # The centres on the diagonal are on the edge: either side is right.
        inside = np.add.outer(np.arange(20), np.arange(20))
        np.testing.assert_array_equal(mask[inside != 19], ~expected[inside != 19])
        first = numbers("uint8") if kind == "alpha" else numbers()
        np.testing.assert_array_equal(clipped.read(1)[mask], first[10:30, 10:30][mask])


# Tiles.


def test_tiles_cover_their_source_without_gaps(tmp_path: Path) -> None:
    values = np.add.outer(np.arange(1100), np.arange(1300)).astype("int16")
    values[:512, :512] = -1
    path = write_tiff(tmp_path / "a.tif", values, nodata=-1, transform=Affine(0.001, 0, 8, 0, -0.001, 47))
    source = resolve_image(path, "nearest", target_crs="EPSG:32632")
    scheme = divide_into_tiles(source, 512)
    assert (scheme.rows, scheme.columns) == (3, 3)
    assert sum(tile.part.width * tile.part.height for tile in scheme.tiles) == scheme.width * scheme.height
    files = [tmp_path / f"{tile.row}-{tile.column}.tif" for tile in scheme.tiles]
    infos = [
        write_tile(source.model_copy(update={"part": tile.part}), file, LOSSLESS, tmp_path / "superblocks")
        for tile, file in zip(scheme.tiles, files, strict=True)
    ]
    written = [file for file, info in zip(files, infos, strict=True) if info is not None]
    assert [file for file in files if file.exists()] == written
    for tile, info in zip(scheme.tiles, infos, strict=True):
        assert info is None or info.bbox == pytest.approx(tile.bbox)
    with rasterio.open(cog_of(source, tmp_path)) as whole:
        joined = arrange(written)
        assert (joined.width, joined.height) == whole.shape[::-1]
        (tmp_path / "joined").mkdir()
        with rasterio.open(cog_of(resolve_image(joined, "nearest"), tmp_path / "joined")) as again:
            # A warp is approximated for the requested window, to an eighth of a pixel.
            values, expected = again.read().astype(int), whole.read().astype(int)
            assert ((values == -1) != (expected == -1)).mean() < 0.001
            assert np.abs(values - expected)[(values != -1) & (expected != -1)].max() <= 2


def test_empty_tiles_are_not_written(tmp_path: Path) -> None:
    values = np.zeros((10, 1024), "uint8")
    values[:, 600:] = 1
    source = resolve_image(write_tiff(tmp_path / "a.tif", values, nodata=0), "nearest")
    empty, full = divide_into_tiles(source, 512).tiles
    for tile, is_made in ((empty, False), (full, True)):
        part = source.model_copy(update={"part": tile.part})
        info = write_tile(part, tmp_path / "tile.tif", LOSSLESS, tmp_path / "superblocks")
        assert (info is not None) == is_made == (tmp_path / "tile.tif").exists()


def test_tiles_are_enlarged_if_there_would_be_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "MAX_TILES", 2)
    source = resolve_image(write_tiff(tmp_path / "a.tif", np.zeros((10, 2000), "uint8")), "nearest")
    assert divide_into_tiles(source, 512).tile_size == 1024
    with pytest.raises(RasterRejected, match="must be a multiple of 512"):
        divide_into_tiles(source, 500)


# Zones.


def test_zones_contain_the_pixels_that_they_cover(tmp_path: Path) -> None:
    values = numbers("float32")
    path = write_tiff(tmp_path / "a.tif", values)
    half = {"type": "Feature", "id": "half", "geometry": mapping(box(10.0, 49.995, 10.64, 50.0))}
    whole = {"type": "Feature", "geometry": mapping(box(10.0, 49.99, 10.64, 50.0)), "properties": {"name": "row"}}
    nowhere = {"type": "Feature", "geometry": mapping(box(0, 0, 1, 1))}
    rows = zonal_statistics(path, [half, whole, nowhere], ["count", "mean", "max"])
    assert [(row["zone"], row["id"]) for row in rows] == [(0, "half"), (1, None), (2, None)]
    assert rows[0]["count"] == pytest.approx(32)
    assert (rows[1]["count"], rows[1]["mean"], rows[1]["max"]) == pytest.approx((64, values[0].mean(), 64))
    assert (rows[1]["properties"], rows[2]["mean"]) == ({"name": "row"}, None)


def test_zones_are_reprojected_to_the_rasters_crs(tmp_path: Path) -> None:
    path = write_tiff(
        tmp_path / "a.tif", numbers("float32"), crs="EPSG:32632", transform=Affine(1000, 0, 5e5, 0, -1000, 5e6)
    )
    zone = {"type": "Feature", "geometry": mapping(box(8.9, 44, 10, 46))}
    [row] = zonal_statistics(path, [zone], ["count", "mean"])
    assert row["count"] == pytest.approx(48 * 64, rel=0.05)


@pytest.mark.parametrize(
    "zones, band, problem",
    [
        ([], 1, "1 to 10000 zones"),
        (
            [{"geometry": {"type": "Point", "coordinates": [1, 2]}}],
            1,
            "zone 0: must be a GeoJSON feature with a Polygon",
        ),
        ([{"geometry": mapping(box(0, 0, 1, 1))}], 2, "has no band 2; it has 1"),
    ],
)
def test_invalid_zones_are_refused(zones: list[dict[str, Any]], band: int, problem: str) -> None:
    with pytest.raises(RasterRejected, match=problem):
        zonal_statistics(DEM, zones, ["mean"], band)


# Handlers.


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    (tmp_path / "storage" / "bronze").mkdir(parents=True)
    (tmp_path / "storage" / "bronze" / "dem.tif").write_bytes(DEM.read_bytes())
    return tmp_path / "storage"


async def run(name: str, params: dict[str, Any], **fields: Any) -> HandlerResult:
    ids: dict[str, Any] = {"task_id": "7_a_0", "job_id": 7, "node_id": "a", "handler": name}
    return await call(registry.get(name), HandlerContext(**{**ids, **fields}, params=params), executor=None)


async def output(name: str, **params: Any) -> dict[str, Any]:
    result = await run(name, params)
    assert result.success, result.error_message
    return result.output or {}


async def test_a_raster_can_be_reprojected_clipped_merged_and_measured(storage: Path) -> None:
    moved = await output("raster_reproject", path="bronze/dem.tif", target_crs="EPSG:3857", target="silver/moved.tif")
    assert moved["cog"]["crs"] == "EPSG:3857"
    west, south, east, north = moved["bbox"]
    middle = (west + east) / 2
    halves = [
        await output(
            "raster_clip", path="bronze/dem.tif", bbox=[left, south, right, north], target=f"silver/{left}.tif"
        )
        for left, right in ((west, middle), (middle, east))
    ]
    paths = [half["blob_path"] for half in halves]
    joined = await output("raster_mosaic", paths=paths, target="silver/joined.tif")
    with rasterio.open(storage / joined["blob_path"]) as mosaic, rasterio.open(DEM) as original:
        np.testing.assert_array_equal(mosaic.read(), original.read())
    zones = {"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": mapping(box(*joined["bbox"]))}]}
    (storage / "bronze" / "zones.geojson").write_bytes(orjson.dumps(zones))
    measured = await output("stats_zonal", path=joined["blob_path"], zones="bronze/zones.geojson", statistics=["mean"])
    assert measured["zones"][0]["mean"] == pytest.approx(joined["cog"]["bands"][0]["statistics"]["mean"])
    assert list((storage / "mount" / "7").iterdir()) == []


async def test_the_former_names_are_aliases(storage: Path) -> None:
    report = await output("raster_validate", path="bronze/dem.tif")
    cog = await output("create_cog", path="bronze/dem.tif", report=report)
    whole = await output("raster_cog_docker", path="bronze/dem.tif", target="silver/whole.tif")
    assert (cog["content_hash"], report) == (whole["content_hash"], whole["report"])
    complete = await output("raster_process_complete", path="bronze/dem.tif", collection_id="hub", item_id="x")
    item = await output("extract_stac_metadata", path=complete["blob_path"], collection_id="hub", item_id="x")
    assert item["stac_item"]["assets"] == complete["stac_item"]["assets"]
    assert (await output("raster.stac_register", cog=cog, collection_id="hub"))["content_hash"] == item["content_hash"]


async def test_the_copy_of_a_raster_that_cannot_be_described_is_removed(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(_: HandlerContext, reference: str) -> str:
        copy = storage / "mount" / "7" / reference
        copy.parent.mkdir(parents=True)
        copy.write_bytes((storage / reference).read_bytes())
        return f"mount/7/{reference}"

    monkeypatch.setattr(raster.containers, "fetch", fetch)
    described = await output("extract_stac_metadata", paths=["bronze/dem.tif"], collection_id="hub")
    [problem] = described["problems"]
    assert "not a cloud-optimised GeoTIFF" in problem["problem"]
    assert not (storage / "mount" / "7" / "bronze" / "dem.tif").exists()


@pytest.mark.parametrize(
    "name, params, problem",
    [
        ("raster_clip", {"path": "bronze/dem.tif"}, "pass bbox or geometry"),
        ("raster_clip", {"path": "bronze/dem.tif", "bbox": [0, 0, 1, 1]}, "does not touch"),
        ("raster_mosaic", {"paths": []}, "at least 1 item"),
        ("raster_reproject", {"path": "bronze/dem.tif", "target_crs": "EPSG:1"}, "is no CRS"),
        ("stats_zonal", {"path": "bronze/dem.tif", "zones": "bronze/dem.tif"}, "is not JSON"),
        ("stats_zonal", {"path": "/etc/passwd", "zones": []}, "outside of the storage zones"),
    ],
)
async def test_invalid_parameters_fail_permanently(
    storage: Path, name: str, params: dict[str, Any], problem: str
) -> None:
    result = await run(name, params)
    assert result.permanent
    assert problem in (result.error_message or "")


async def test_a_batch_resumes_after_its_last_checkpoint(storage: Path) -> None:
    report = await output("raster.validate", path="bronze/dem.tif")
    scheme = await output("raster.generate_tiling_scheme", path="bronze/dem.tif", report=report, tile_size=512)
    assert scheme["batches"] == [scheme["tiles"]]
    params = {"path": "bronze/dem.tif", "profile": scheme["profile"], "warp": scheme["warp"]}
    saved: list[Checkpoint] = []
    first = await run(
        "raster.process_tile_batch", {**params, "tiles": scheme["tiles"]}, checkpoint_sink=_keeping(saved)
    )
    [checkpoint] = saved
    path = storage / "silver" / "rasters" / "7" / "tiles" / "dem_0_0.tif"
    path.unlink()
    again = await run("raster.process_tile_batch", {**params, "tiles": scheme["tiles"]}, resumed_from=checkpoint)
    assert (again.output, path.exists()) == (first.output, False)
    single = await output("raster.process_tile", **params, tile=scheme["tiles"][0])
    assert first.output == {"tiles": [single]}
    result = await output("finalize", tiles=[single], bbox=scheme["bbox"], footprint=scheme["footprint"])
    index = orjson.loads((storage / result["blob_path"]).read_bytes())
    assert index["features"][0]["properties"]["content_hash"] == single["file"]["content_hash"]
    items = await output("raster.stac_register_items", tiles=[single], collection_id="tiles", asset_id="abc")
    assert items["stac_item_ids"] == ["abc-0-0-0"]


def _keeping(saved: list[Checkpoint]) -> Callable[[Checkpoint], None]:
    return saved.append


async def test_an_attempt_reuses_the_superblocks_of_the_previous_one(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGMASTER_RASTER_PARALLEL_ABOVE_MB", "0")
    monkeypatch.setenv("DAGMASTER_RASTER_PROCESSES", "1")
    write_tiff(storage / "bronze" / "a.tif", np.ones((600, 600), "uint8"))
    params = {"path": "bronze/a.tif", "profile": LOSSLESS.model_dump()}

    def fail(_: Checkpoint) -> None:
        raise OSError("the disk is full")

    assert not (await run("raster.create_cog", params, checkpoint_sink=fail)).success
    [left] = (storage / "mount" / "7" / "a.work").iterdir()
    assert (left / "superblocks" / "0-0-0.json").exists()
    saved: list[Checkpoint] = []
    done = await run("raster.create_cog", params, retry_count=1, checkpoint_sink=_keeping(saved))
    assert done.success
    assert (saved, (storage / "mount" / "7" / "a.work").exists()) == ([], False)


async def test_an_attempt_continues_with_the_copy_of_the_file_that_the_one_before_has_written(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGMASTER_RASTER_PARALLEL_ABOVE_MB", "0")
    monkeypatch.setenv("DAGMASTER_RASTER_PROCESSES", "1")
    write_tiff(storage / "bronze" / "a.tif", np.ones((600, 600), "uint8"))
    params = {"path": "bronze/a.tif", "profile": LOSSLESS.model_dump()}
    saved: list[Checkpoint] = []

    async def lose(*_: Any) -> Copied:
        raise OSError("the connection is lost")

    async def spoil(*_: Any) -> Copied:
        return Copied(reference="silver/a.tif", size_bytes=1, sha256="0", resumed_at=0)

    for number, (copy, written) in enumerate(((lose, 1), (lose, 1), (spoil, 1), (lose, 2))):
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "copy", copy)
            failed = await run("raster.create_cog", params, retry_count=number, checkpoint_sink=_keeping(saved))
        assert (failed.success, len(saved)) == (False, written), number
    done = await run("raster.create_cog", params, retry_count=4, checkpoint_sink=_keeping(saved))
    assert (done.success, len(saved)) == (True, 2)
    assert not (storage / "mount" / "7" / "a.work").exists()
