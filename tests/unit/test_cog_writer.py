"""The parallel writer of cloud-optimised GeoTIFFs, compared with independent readers and writers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import rasterio
import rasterio.shutil
from affine import Affine
from rasterio.enums import ColorInterp, MaskFlags
from rasters import DEM, NORTH_UP, create_cog, write_tiff
from rio_cogeo.cogeo import cog_validate

from dagmaster.geo.errors import UnreadableRaster
from dagmaster.geo.raster.cog import ParallelWriter, inspect_cog
from dagmaster.geo.raster.header import Part
from dagmaster.geo.raster.image import open_image, resolve_image
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.pyramid import MB, Pyramid, divide
from dagmaster.geo.raster.writer import Written, share_memory, write_cog

LOSSLESS = Profile(compression="ZSTD", level=1, predictor=2, resampling="bilinear", overview_resampling="average")
FLOATING = LOSSLESS.model_copy(update={"predictor": 3})
CLASSES = LOSSLESS.model_copy(update={"overview_resampling": "nearest"})
WIDTH, HEIGHT = 1100, 530


class Stopped(Exception):
    pass


def noise(dtype: str = "int16", bands: int = 1, shape: tuple[int, int] = (HEIGHT, WIDTH)) -> Any:
    values = np.random.default_rng(7).integers(0, 100, (bands, *shape))
    return values.astype(dtype)


def write(source: Path, profile: Profile = LOSSLESS, *, side: int = 512, **options: Any) -> tuple[Path, Written]:
    """In small superblocks, so that all stages have some."""
    image = resolve_image(source, profile.resampling, **options.pop("crs", {}))
    with open_image(image) as opened:
        pyramid = Pyramid(width=opened.width, height=opened.height, across=side, down=side)
    target, folder = source.with_name("cog.tif"), source.with_name("superblocks")
    written = write_cog(image, target, profile, folder, **{"pyramid": pyramid, **options})
    assert cog_validate(target, strict=True) == (True, [], [])
    assert inspect_cog(target).sha256 == written.sha256, "every block can be read"
    return target, written


@contextmanager
def both(source: Path, target: Path) -> Iterator[tuple[Any, Any]]:
    with rasterio.open(source) as before, rasterio.open(target) as after:
        yield before, after


def by_gdal(source: Path, resampling: str = "AVERAGE") -> Path:
    target = source.with_name("gdal.tif")
    rasterio.shutil.copy(source, target, driver="COG", compress="ZSTD", overview_resampling=resampling)
    return target


def overview(path: Path, level: int = 0) -> Any:
    with rasterio.open(path, overview_level=level) as dataset:
        return dataset.read()


@pytest.mark.parametrize(
    "dtype",
    ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"],
)
def test_pixels_statistics_and_overviews_are_correct_for_all_types(tmp_path: Path, dtype: str) -> None:
    values = noise(dtype, shape=(520, 520))
    source = write_tiff(tmp_path / "a.tif", values)
    target, written = write(source, FLOATING if dtype.startswith("float") else LOSSLESS)
    with both(source, target) as (before, after):
        np.testing.assert_array_equal(before.read(), after.read())
        assert (before.crs, before.transform, before.dtypes) == (after.crs, after.transform, after.dtypes)
        assert after.overviews(1) == [2]
    np.testing.assert_allclose(overview(target).astype("float64"), overview(by_gdal(source)), atol=1)
    [band] = written.statistics
    assert (band.minimum, band.maximum, band.valid_percent) == (0, 99, 100)
    assert (band.mean, band.stddev) == pytest.approx((values.mean(), values.std()))


def test_overviews_ignore_nodata_and_never_invent_it(tmp_path: Path) -> None:
    values = noise()[0] * 2 - 100
    values[:, 300:900] = 0
    source = write_tiff(tmp_path / "a.tif", values, nodata=0)
    target, written = write(source, pyramid=Pyramid(width=WIDTH, height=HEIGHT, across=1024, down=512))
    with both(source, target) as (before, after):
        np.testing.assert_array_equal(before.read(), after.read())
        assert after.nodata == 0
        assert after.overviews(1) == [2, 4]
    with rasterio.open(target, overview_level=1) as last:
        assert last.nodata == 0
    for level in (0, 1):
        step = 2 ** (level + 1)
        is_empty = (overview(target, level)[0] == 0)[:-1, :-1]
        whole = values[: is_empty.shape[0] * step, : is_empty.shape[1] * step]
        expected = (whole.reshape(is_empty.shape[0], step, is_empty.shape[1], step) == 0).all(axis=(1, 3))
        np.testing.assert_array_equal(is_empty, expected)
    assert written.statistics[0].valid_percent == pytest.approx(100 * (values != 0).mean(), abs=0.001)


def test_nan_is_ignored_by_averages(tmp_path: Path) -> None:
    values = np.full((600, 600), 5, "float32")
    values[:, ::2] = np.nan
    target, written = write(write_tiff(tmp_path / "a.tif", values, nodata=np.nan), FLOATING)
    assert np.unique(overview(target)).tolist() == [5]
    assert (written.statistics[0].minimum, written.statistics[0].valid_percent) == (5, 50)


def test_classes_keep_their_values_and_their_palette(tmp_path: Path) -> None:
    source = write_tiff(tmp_path / "a.tif", noise("uint8") % 5 * 40)
    colours = {0: (0, 0, 0, 255), 40: (255, 0, 0, 255), 160: (0, 9, 200, 255)}
    with rasterio.open(source, "r+") as dataset:
        dataset.write_colormap(1, colours)
    target, written = write(source, CLASSES)
    with both(source, target) as (before, after):
        np.testing.assert_array_equal(before.read(), after.read())
        assert after.colorinterp == (ColorInterp.palette,)
        assert after.colormap(1)[160] == colours[160]
    with rasterio.open(target, overview_level=0) as halved:
        np.testing.assert_array_equal(halved.read(1), noise("uint8")[0, ::2, ::2] % 5 * 40)
        assert halved.colormap(1)[160] == colours[160]
    assert written.statistics[0].classes == 5


def test_bands_keep_names_units_and_metadata(tmp_path: Path) -> None:
    source = write_tiff(tmp_path / "a.tif", noise("uint16", bands=5, shape=(300, 600)), interleave="band")
    with rasterio.open(source, "r+") as dataset:
        dataset.descriptions = ("red", "nir", "swir", "depth", "")
        dataset.units = ("", "", "", "m", "")
        dataset.scales, dataset.offsets = (0.1,) * 5, (3.0,) * 5
        dataset.update_tags(author="Ada", AREA_OR_POINT="Point")
        dataset.update_tags(4, method="sonar", STATISTICS_MAXIMUM="77")
    target, _ = write(source)
    with both(source, target) as (before, after):
        np.testing.assert_array_equal(before.read(), after.read())
        assert after.descriptions[:4] == ("red", "nir", "swir", "depth")
        assert (after.units[3], after.scales, after.offsets) == ("m", before.scales, before.offsets)
        assert (after.tags()["author"], after.tags()["AREA_OR_POINT"]) == ("Ada", "Point")
        assert after.transform.almost_equals(before.transform)
        assert after.tags(4) == {"method": "sonar"}


@pytest.mark.parametrize("side", [512, 1024])
def test_a_mask_is_kept_in_all_levels(tmp_path: Path, side: int) -> None:
    source = write_tiff(tmp_path / "a.tif", noise("uint8", bands=3), photometric="RGB")
    mask = np.zeros((HEIGHT, WIDTH), "uint8")
    mask[100:450, 2:800] = 255
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(source, "r+") as dataset:
        dataset.write_mask(mask)
    target, written = write(source, side=side)
    with both(source, target) as (before, after):
        np.testing.assert_array_equal(before.read(), after.read())
        np.testing.assert_array_equal(after.dataset_mask(), mask)
        assert after.mask_flag_enums[0] == [MaskFlags.per_dataset]
    with rasterio.open(target, overview_level=0) as halved:
        np.testing.assert_array_equal(halved.dataset_mask()[:, :400], mask[::2, :800:2] | mask[1::2, :800:2])
    assert written.statistics[0].valid_percent == pytest.approx(100 * (mask > 0).mean(), abs=0.001)


def test_colours_are_compressed_with_loss_and_transparency_becomes_a_mask(tmp_path: Path) -> None:
    ramp = np.tile(np.linspace(0, 200, 600).astype("uint8"), (HEIGHT, 1))
    alpha = np.where(np.arange(HEIGHT) < 300, 0, 255).astype("uint8")[:, None] * np.ones(600, "uint8")
    source = write_tiff(tmp_path / "a.tif", np.stack([ramp, ramp, ramp, alpha]), photometric="RGB", alpha="YES")
    for compression, count in (("JPEG", 3), ("WEBP", 4)):
        lossy = Profile(compression=compression, quality=90, resampling="cubic", overview_resampling="average")
        target, written = write(source, lossy)
        with rasterio.open(target) as cog:
            assert (cog.count, len(written.statistics)) == (count, count)
            np.testing.assert_array_equal(cog.dataset_mask(), alpha)
            assert np.abs(cog.read(1)[320:].astype(int) - ramp[320:]).max() <= 8
        # Colours of transparent pixels are not visible.
        with rasterio.open(target, overview_level=0) as halved:
            assert np.abs(halved.read(1)[170:].astype(int) - ramp[340::2, ::2]).max() <= 8


@pytest.mark.parametrize("processes", [1, 2])
def test_a_reprojected_file_equals_gdals(tmp_path: Path, processes: int) -> None:
    target, _ = write(_slope(tmp_path / "a.tif"), FLOATING, processes=processes, crs={"target_crs": "EPSG:32632"})
    create_cog(tmp_path / "a.tif", tmp_path / "gdal.tif", FLOATING, target_crs="EPSG:32632")
    with both(tmp_path / "gdal.tif", target) as (expected, cog):
        assert (expected.transform, expected.shape, expected.crs) == (cog.transform, cog.shape, cog.crs)
        np.testing.assert_allclose(expected.read(), cog.read(), atol=0.2)
        np.testing.assert_array_equal(expected.dataset_mask(), cog.dataset_mask())


def _slope(path: Path) -> Path:
    values = np.add.outer(np.arange(HEIGHT), np.arange(WIDTH)).astype("float32")
    return write_tiff(path, values, nodata=-1, transform=Affine(0.001, 0, 8, 0, -0.001, 47))


def test_a_window_is_written_in_its_place(tmp_path: Path) -> None:
    source = write_tiff(tmp_path / "a.tif", noise())
    part = Part(column=600, row=100, width=300, height=200)
    image = resolve_image(source, "nearest").model_copy(update={"part": part})
    write_cog(image, tmp_path / "cog.tif", LOSSLESS, tmp_path / "superblocks")
    with rasterio.open(tmp_path / "cog.tif") as cog:
        np.testing.assert_array_equal(cog.read(), noise()[:, 100:300, 600:900])
        assert cog.transform.almost_equals(NORTH_UP * Affine.translation(600, 100))


@pytest.mark.parametrize("shape", [(1300, 100), (1, 700), (1, 1)])
def test_narrow_images_are_cloud_optimised(tmp_path: Path, shape: tuple[int, int]) -> None:
    values = noise(shape=shape)
    target, _ = write(write_tiff(tmp_path / "a.tif", values))
    with rasterio.open(target) as cog:
        np.testing.assert_array_equal(cog.read(), values)


def test_a_file_over_4_gb_is_a_bigtiff(tmp_path: Path) -> None:
    source = write_tiff(tmp_path / "a.tif", noise())
    target, _ = write(source, largest_classic=1000)
    assert target.read_bytes()[:4] == b"II+\0"
    with both(source, target) as (before, after):
        np.testing.assert_array_equal(before.read(), after.read())


def test_the_file_does_not_depend_on_the_partitioning(tmp_path: Path) -> None:
    source = write_tiff(tmp_path / "a.tif", noise("uint8"), nodata=3)
    shapes = [(512, 512), (1024, 512), (2048, 2048)]
    contents = {
        write(source, pyramid=Pyramid(width=WIDTH, height=HEIGHT, across=across, down=down))[0].read_bytes()
        for across, down in shapes
    }
    assert len(contents) == 1


def test_a_second_attempt_writes_only_missing_parts(tmp_path: Path) -> None:
    source = write_tiff(tmp_path / "a.tif", noise())
    undisturbed = write(source)[0].read_bytes()
    steps: list[tuple[int, int]] = []

    def stop_after_three(done: int, total: int) -> None:
        steps.append((done, total))
        if done == 3:
            raise Stopped

    def attempt(**options: Any) -> Written:
        return write(source, on_superblock=stop_after_three, **options)[1]

    for path in (tmp_path / "superblocks").iterdir():
        path.unlink()
    with pytest.raises(Stopped):
        attempt()
    for torn in (tmp_path / "superblocks").glob("0-0-2.bin"):
        torn.write_bytes(b"")  # As after a power failure.
    assert steps == [(1, 9), (2, 9), (3, 9)]
    with pytest.raises(Stopped):
        attempt()
    assert steps[3:] == [(3, 9)], "the torn one is made again"
    assert attempt().resumed == 3
    assert (tmp_path / "cog.tif").read_bytes() == undisturbed

    write_tiff(source, noise() + 1)
    with pytest.raises(Stopped):
        attempt()
    assert steps[-3:] == [(1, 9), (2, 9), (3, 9)], "another source begins again"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_damaged_source_is_reported_with_its_place(tmp_path: Path, processes: int) -> None:
    source = write_tiff(tmp_path / "a.tif", noise(), tiled=True, compress="deflate")
    content = bytearray(source.read_bytes())
    content[len(content) // 2 :] = b"\0" * len(content[len(content) // 2 :])
    source.write_bytes(content)
    with pytest.raises(UnreadableRaster, match=r"a\.tif is damaged: it cannot be read at row"):
        write(source, processes=processes)
    assert not (tmp_path / "cog.tif").exists()
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert not any("superblock_pool" in command for command in commands)


def test_superblocks_fit_into_memory_and_follow_strips() -> None:
    tiled = divide(100_000, 80_000, 4, memory_bytes=200 * MB, source_block=(512, 512))
    assert (tiled.across, tiled.down, tiled.depth) == (2048, 2048, 3)
    assert tiled.stages == 3
    striped = divide(20_000, 20_000, 4, memory_bytes=300 * MB, source_block=(1, 20_000))
    assert striped.across >= 20_000
    assert 20_000 * striped.down * 4 * 6 <= 300 * MB
    assert divide(10**6, 10**6, 800, memory_bytes=0).down == 512


@pytest.mark.parametrize("memory_mb, processes, expected", [(600, 2, 2), (600, 16, 4), (2000, 16, 16), (10, 4, 1)])
def test_the_number_of_processes_is_limited_by_memory(memory_mb: int, processes: int, expected: int) -> None:
    count, working_bytes = share_memory(memory_mb, processes)
    assert count == expected
    assert working_bytes == 0 or (count * working_bytes) / MB <= memory_mb - 80


def test_only_large_images_are_written_in_parallel(tmp_path: Path) -> None:
    steps: list[int] = []
    for above in (1, 0):
        parallel = ParallelWriter(
            folder=tmp_path / "superblocks",
            processes=1,
            above_mb=above,
            on_superblock=lambda done, _: steps.append(done),
        )
        info = create_cog(DEM, tmp_path / f"{above}.tif", LOSSLESS, parallel=parallel)
        assert info == inspect_cog(tmp_path / f"{above}.tif")
    assert steps == [1]
    assert not list((tmp_path / "superblocks").glob("*.bin"))


def test_a_finished_file_is_not_written_again_unless_its_source_has_changed(tmp_path: Path) -> None:
    source, target = write_tiff(tmp_path / "a.tif", noise()), tmp_path / "cog.tif"
    steps: list[int] = []
    parallel = ParallelWriter(
        folder=tmp_path / "superblocks", processes=1, above_mb=0, on_superblock=lambda done, _: steps.append(done)
    )

    def attempt() -> int:
        steps.clear()
        assert create_cog(source, target, LOSSLESS, parallel=parallel) == inspect_cog(target)
        return len(steps)

    made = attempt()
    assert (made > 0, attempt()) == (True, 0)
    target.write_bytes(target.read_bytes()[:-1])
    assert attempt() == made, "it is not complete"
    write_tiff(source, noise() + 1)
    assert attempt() == made, "the source is another one"
    with both(source, target) as (before, after):
        np.testing.assert_array_equal(before.read(), after.read())
