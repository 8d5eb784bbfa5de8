"""Untrusted rasters are validated in full and become COGs that independent readers agree with."""

import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.enums import ColorInterp
from rasterio.warp import Resampling, reproject
from rasters import DEM, RGB, VRT, WMS, create_cog, write_tiff
from rio_cogeo.cogeo import cog_validate

from dagmaster.geo.errors import RasterRejected, UnreadableRaster
from dagmaster.geo.footprint import footprint_of
from dagmaster.geo.raster import statistics
from dagmaster.geo.raster.cog import CogInfo, inspect_cog
from dagmaster.geo.raster.profiles import Profile, RasterType, Tier, choose_profile
from dagmaster.geo.raster.reader import open_geotiff
from dagmaster.geo.raster.validate import RasterReport, validate
from dagmaster.geo.validation import CrsSource, Outcome

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def cog_of(
    source: Path,
    target: Path,
    *,
    assigned_crs: str | None = None,
    target_crs: str | None = None,
    tier: Tier = Tier.ANALYSIS,
) -> tuple[RasterReport, CogInfo]:
    report = validate(source, assigned_crs=assigned_crs, target_crs=target_crs, tier=tier).check()
    assert report.profile is not None
    return report, create_cog(source, target, report.profile, assigned_crs=assigned_crs, target_crs=target_crs)


# Real rasters.


def test_a_real_image_is_recognised() -> None:
    report = validate(RGB, target_crs="EPSG:3857")
    assert (report.outcome, report.raster_type, report.is_cog) == (Outcome.ACCEPTED, RasterType.RGB, False)
    assert (report.width, report.height, report.crs, report.crs_source) == (485, 373, "EPSG:4326", CrsSource.FILE)
    assert report.bbox == pytest.approx((-106.0566, 40.0602, -105.3291, 40.6197), abs=1e-4)
    assert [(band.dtype, band.nodata, band.colour) for band in report.bands] == [
        ("uint8", 255, "red"),
        ("uint8", 255, "green"),
        ("uint8", 255, "blue"),
    ]


def test_statistics_are_those_of_the_valid_pixels() -> None:
    [band] = validate(DEM).bands
    with rasterio.open(DEM) as dataset:
        values = dataset.read(1, masked=True).compressed().astype("float64")
    computed = band.statistics
    assert (computed.minimum, computed.maximum) == (values.min(), values.max())
    assert (computed.mean, computed.stddev) == pytest.approx((values.mean(), values.std()))
    assert validate(DEM).raster_type is RasterType.DEM


@pytest.mark.parametrize(
    "layout",
    [{"blockysize": 700}, {"blockysize": 1}, {"tiled": True, "blockxsize": 256, "blockysize": 256}],
    ids=["one block", "strips", "tiles"],
)
def test_every_pixel_is_read_once_in_limited_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any]
) -> None:
    monkeypatch.setattr(statistics, "READ_PIXELS", 100_000)
    values = np.random.default_rng(7).integers(0, 5000, (700, 900), "int16")
    with open_geotiff(write_tiff(tmp_path / "a.tif", values, **layout)) as dataset:
        parts = [window.width * window.height for window in statistics._windows(dataset)]
        [computed] = statistics.read_statistics(dataset)
    assert sum(parts) == values.size
    assert max(parts) <= 100_000
    assert (computed.minimum, computed.maximum) == (values.min(), values.max())
    assert (computed.mean, computed.stddev) == pytest.approx((values.mean(), values.std()))


@pytest.mark.parametrize("source", [RGB, DEM], ids=["rgb", "dem"])
def test_a_cog_has_the_pixels_of_its_source(source: Path, tmp_path: Path) -> None:
    _, info = cog_of(source, tmp_path / "cog.tif")
    is_valid, errors, warnings = cog_validate(tmp_path / "cog.tif", strict=True)
    assert (is_valid, errors, warnings) == (True, [], [])
    with rasterio.open(source) as before, rasterio.open(tmp_path / "cog.tif") as after:
        np.testing.assert_array_equal(before.read(), after.read())
        assert before.transform.almost_equals(after.transform)
        assert (before.crs, before.nodatavals) == (after.crs, after.nodatavals)
    checksum = subprocess.run(["sha256sum", tmp_path / "cog.tif"], capture_output=True, text=True, check=True).stdout
    assert info.sha256 == checksum.split()[0]
    assert (info.size_bytes, info.compression) == ((tmp_path / "cog.tif").stat().st_size, "ZSTD")
    assert [path.name for path in tmp_path.iterdir()] == ["cog.tif"]


def test_a_reprojected_cog_equals_a_manual_reprojection(tmp_path: Path) -> None:
    _, info = cog_of(DEM, tmp_path / "cog.tif", target_crs="EPSG:32613")
    assert info.crs == "EPSG:32613"
    assert cog_validate(tmp_path / "cog.tif", strict=True)[0]
    with rasterio.open(DEM) as source, rasterio.open(tmp_path / "cog.tif") as cog:
        expected = np.full(cog.shape, 65535, "uint16")
        reproject(
            source.read(1),
            expected,
            src_transform=source.transform,
            src_crs=source.crs,
            src_nodata=65535,
            dst_transform=cog.transform,
            dst_crs=cog.crs,
            dst_nodata=65535,
            resampling=Resampling.bilinear,
        )
        values = cog.read(1)
    both = (values != 65535) & (expected != 65535)
    assert both.mean() > 0.9
    assert np.abs(values[both].astype(int) - expected[both]).max() <= 1


def test_a_large_raster_gets_overviews_that_ignore_nodata(tmp_path: Path) -> None:
    values = np.full((1100, 1300), 1000, "int16")
    values[:, ::2] = -9999
    write_tiff(tmp_path / "a.tif", values, nodata=-9999)
    _, info = cog_of(tmp_path / "a.tif", tmp_path / "cog.tif")
    assert info.overviews == [2, 4]
    assert cog_validate(tmp_path / "cog.tif", strict=True)[0]
    with rasterio.open(tmp_path / "cog.tif", overview_level=0) as overview:
        assert set(np.unique(overview.read(1))) <= {1000, -9999}


# Profiles.


@pytest.mark.parametrize(
    "kind, tier, dtype, has_nodata, compression, predictor, resampling",
    [
        (RasterType.RGB, Tier.VISUALIZATION, "uint8", False, "JPEG", None, "cubic"),
        (RasterType.RGBA, Tier.VISUALIZATION, "uint8", False, "WEBP", None, "cubic"),
        (RasterType.RGB, Tier.VISUALIZATION, "uint8", True, "ZSTD", 2, "nearest"),
        (RasterType.RGB, Tier.VISUALIZATION, "uint16", False, "ZSTD", 2, "cubic"),
        (RasterType.RGB, Tier.ANALYSIS, "uint8", False, "ZSTD", 2, "cubic"),
        (RasterType.CATEGORICAL, Tier.VISUALIZATION, "uint8", False, "ZSTD", 2, "nearest"),
        (RasterType.DEM, Tier.ARCHIVE, "float32", True, "ZSTD", 3, "bilinear"),
    ],
)
def test_only_images_without_nodata_are_compressed_lossily(
    kind: RasterType, tier: Tier, dtype: str, has_nodata: bool, compression: str, predictor: int, resampling: str
) -> None:
    profile = choose_profile(kind, tier, dtype, has_nodata=has_nodata)
    assert (profile.compression, profile.predictor, profile.resampling) == (compression, predictor, resampling)


def test_a_lossy_cog_looks_the_same(tmp_path: Path) -> None:
    ramp = np.linspace(0, 200, 128, dtype="uint8")
    values = np.stack([np.tile(ramp, (96, 1))] * 3)
    source = write_tiff(tmp_path / "a.tif", values, photometric="RGB")
    _, info = cog_of(source, tmp_path / "cog.tif", tier=Tier.VISUALIZATION)
    assert info.compression == "JPEG"
    with rasterio.open(tmp_path / "cog.tif") as cog:
        assert np.abs(cog.read().astype(int) - values).max() <= 8


@pytest.mark.parametrize(
    "values, profile, expected",
    [
        (np.arange(30 * 30, dtype="uint8").reshape(30, 30) % 5, {}, RasterType.CATEGORICAL),
        (np.arange(30 * 30).reshape(30, 30).astype("uint8"), {}, RasterType.CONTINUOUS),
        (np.linspace(-1, 1, 900, dtype="float32").reshape(30, 30), {}, RasterType.CONTINUOUS),
        (np.linspace(0, 3000, 900, dtype="float32").reshape(30, 30), {}, RasterType.DEM),
        (np.ones((4, 9, 9), "uint8"), {"photometric": "RGB", "alpha": "YES"}, RasterType.RGBA),
        (np.ones((6, 9, 9), "uint16"), {}, RasterType.MULTISPECTRAL),
    ],
)
def test_the_type_is_detected(tmp_path: Path, values: np.ndarray, profile: dict[str, str], expected: str) -> None:
    assert validate(write_tiff(tmp_path / "a.tif", values, **profile)).raster_type == expected


def test_a_palette_implies_classes(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "a.tif", np.ones((9, 9), "uint8"))
    with rasterio.open(path, "r+") as dataset:
        dataset.write_colormap(1, {1: (255, 0, 0, 255)})
        dataset.colorinterp = [ColorInterp.palette]
    report = validate(path)
    assert report.raster_type is RasterType.CATEGORICAL
    assert report.profile is not None
    assert report.profile.overview_resampling == "nearest"


# The CRS of the file and of the sender.


def test_a_crs_comes_from_the_file_or_the_sender_unless_they_contradict(tmp_path: Path) -> None:
    plain = write_tiff(tmp_path / "plain.tif", crs=None)
    assert validate(DEM).crs_source is CrsSource.FILE
    assert validate(DEM, assigned_crs="EPSG:4326").crs_source is CrsSource.CONFIRMED
    contradicted = validate(DEM, assigned_crs="EPSG:32613")
    assert contradicted.outcome is Outcome.REJECTED
    assert contradicted.problems == ["the file is in EPSG:4326, but EPSG:32613 was given; correct one of the two"]
    assigned = validate(plain, assigned_crs="EPSG:4326")
    assert (assigned.outcome, assigned.crs_source) == (Outcome.ACCEPTED_WITH_WARNINGS, CrsSource.ASSIGNED)
    missing = validate(plain)
    assert (missing.outcome, missing.crs) == (Outcome.REJECTED, None)
    with pytest.raises(RasterRejected, match="no CRS and none was given"):
        missing.check()


def test_an_assigned_crs_is_written_to_the_cog(tmp_path: Path) -> None:
    plain = write_tiff(tmp_path / "plain.tif", crs=None)
    _, info = cog_of(plain, tmp_path / "cog.tif", assigned_crs="EPSG:4326")
    assert info.crs == "EPSG:4326"
    with rasterio.open(plain) as before, rasterio.open(tmp_path / "cog.tif") as after:
        np.testing.assert_array_equal(before.read(1), after.read(1))


def test_an_unknown_crs_is_refused() -> None:
    with pytest.raises(RasterRejected, match="'EPSG:123456' is no CRS"):
        validate(DEM, target_crs="EPSG:123456")


def test_coordinates_outside_the_globe_indicate_a_wrong_crs(tmp_path: Path) -> None:
    metres = write_tiff(tmp_path / "a.tif", transform=Affine(30, 0, 500_000, 0, -30, 4_500_000))
    report = validate(metres)
    assert report.outcome is Outcome.REJECTED
    assert "nowhere on the globe" in report.problems[0]


# Defective rasters.


@pytest.mark.parametrize("text", [VRT, WMS, "", "PK\x03\x04", "II"], ids=["vrt", "wms", "empty", "zip", "short"])
def test_a_file_that_is_not_a_tiff_is_refused_before_gdal_opens_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.tif"
    path.write_text(text)
    with pytest.raises(UnreadableRaster, match="is not a TIFF file"):
        validate(path)
    with pytest.raises(UnreadableRaster, match="is not a TIFF file"):
        create_cog(
            path, tmp_path / "cog.tif", Profile(compression="ZSTD", resampling="nearest", overview_resampling="nearest")
        )
    assert not (tmp_path / "cog.tif").exists()


def test_a_signature_before_other_text_is_not_enough(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(b"II*\0" + VRT.encode())
    with pytest.raises(UnreadableRaster):
        validate(tmp_path / "a.tif")


def test_sidecar_files_are_not_read(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "a.tif")
    (tmp_path / "a.tif.aux.xml").write_text(
        '<PAMDataset><Metadata><MDI key="planted">yes</MDI></Metadata></PAMDataset>'
    )
    with open_geotiff(path) as dataset:
        assert "planted" not in dataset.tags()
    validate(path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_truncated_file_is_found_by_reading_all_of_it(tmp_path: Path) -> None:
    cog_of(RGB, tmp_path / "cog.tif")
    content = (tmp_path / "cog.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(content[: len(content) * 2 // 3])
    assert cog_validate(tmp_path / "cut.tif")[0], "its layout alone is valid"
    with pytest.raises(UnreadableRaster, match=r"cut\.tif is damaged: band 1 cannot be read at row"):
        validate(tmp_path / "cut.tif")
    with pytest.raises(UnreadableRaster):
        inspect_cog(tmp_path / "cut.tif")


def test_overwritten_bytes_are_found_by_the_checksum(tmp_path: Path) -> None:
    _, info = cog_of(write_tiff(tmp_path / "a.tif"), tmp_path / "cog.tif")
    content = bytearray((tmp_path / "cog.tif").read_bytes())
    content[-40:-30] = b"\xff" * 10
    (tmp_path / "cog.tif").write_bytes(content)
    try:
        assert inspect_cog(tmp_path / "cog.tif").sha256 != info.sha256
    except UnreadableRaster as error:
        assert "damaged" in str(error)


def test_bytes_overwritten_in_a_compressed_block_are_found_while_reading(tmp_path: Path) -> None:
    source = write_tiff(
        tmp_path / "a.tif", np.random.default_rng(1).integers(0, 9, (512, 512), "uint8"), compress="deflate"
    )
    content = bytearray(source.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = b"\0" * 400
    source.write_bytes(content)
    with pytest.raises(UnreadableRaster, match="is damaged"):
        validate(source)


def problems_of(path: Path) -> list[str]:
    report = validate(path)
    assert report.outcome is Outcome.REJECTED
    return report.problems


def test_a_raster_without_data_is_rejected(tmp_path: Path) -> None:
    assert problems_of(write_tiff(tmp_path / "a.tif", np.zeros((9, 9), "uint8"), nodata=0)) == [
        "all its pixels are nodata"
    ]
    nothing = np.full((9, 9), np.nan, "float32")
    assert problems_of(write_tiff(tmp_path / "b.tif", nothing)) == ["all its pixels are nodata"]


def test_complex_numbers_are_rejected(tmp_path: Path) -> None:
    [problem] = problems_of(write_tiff(tmp_path / "a.tif", np.ones((9, 9), "complex64")))
    assert "complex numbers (complex64)" in problem


def test_a_file_without_bands_is_refused(tmp_path: Path) -> None:
    """A raster that says so, and one that has no image at all."""
    tags = {256: 4, 257: 4, 258: 8, 259: 1, 262: 1, 273: 200, 277: 0, 278: 4, 279: 16}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4)
    for content in (directory, struct.pack("<2sHI", b"II", 42, 0)):
        (tmp_path / "a.tif").write_bytes(content.ljust(300, b"\0"))
        with pytest.raises(UnreadableRaster, match=r"a\.tif cannot be opened"):
            validate(tmp_path / "a.tif")


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "a.tif", np.zeros((9, 9), "uint8"), nodata=0, crs=None, transform=None)
    assert problems_of(path) == [
        "the file has no CRS and none was given; pass assigned_crs, such as EPSG:4326",
        "it has no georeference: nothing says where its pixels are",
        "all its pixels are nodata",
    ]


def test_one_pixel_is_a_valid_raster(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "a.tif", np.array([[7]], "int16"))
    report, info = cog_of(path, tmp_path / "cog.tif", target_crs="EPSG:3857")
    assert report.warnings == ["it is only 1 x 1 pixels"]
    assert info.bands[0].statistics.maximum == 7


def test_a_rotated_raster_is_resampled_north_up(tmp_path: Path) -> None:
    rotated = Affine(0.00866, 0.005, 10.0, 0.005, -0.00866, 50.0)
    path = write_tiff(tmp_path / "a.tif", np.full((60, 60), 500, "int16"), transform=rotated, nodata=-1)
    report, info = cog_of(path, tmp_path / "cog.tif")
    assert report.is_rotated
    assert report.warnings == ["its grid is rotated or upside down: it is resampled to a grid that points north"]
    with rasterio.open(tmp_path / "cog.tif") as cog:
        assert (cog.transform.b, cog.transform.d) == (0, 0)
        assert set(np.unique(cog.read(1))) == {500, -1}
    assert report.bbox is not None
    assert info.bbox == pytest.approx(report.bbox, abs=0.02)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int8", "int16", "int32", "float32", "float64"])
def test_pixels_that_reprojection_adds_are_masked_without_a_nodata_value(tmp_path: Path, dtype: str) -> None:
    path = write_tiff(tmp_path / "a.tif", np.full((60, 60), 100, dtype))
    _, info = cog_of(path, tmp_path / "cog.tif", target_crs="EPSG:32632")
    with rasterio.open(tmp_path / "cog.tif") as cog:
        values, mask = cog.read(1), cog.dataset_mask()
    np.testing.assert_allclose(values[mask > 0], 100)
    assert (mask == 0).any()
    assert info.bands[0].statistics.minimum == pytest.approx(100)


def test_a_raster_that_uses_all_values_requires_a_nodata_value_to_be_reprojected(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "a.tif", np.array([[-128, 0, 127]], "int8"))
    with pytest.raises(RasterRejected, match="needs a nodata value"):
        cog_of(path, tmp_path / "cog.tif", target_crs="EPSG:32632")


def test_unusual_values_cause_a_warning(tmp_path: Path) -> None:
    report = validate(write_tiff(tmp_path / "a.tif", np.linspace(0, 1, 81).reshape(9, 9)))
    assert report.warnings == ["its values have 64 bits; 32 bits would be half the size"]
    infinite = write_tiff(tmp_path / "b.tif", np.array([[np.inf, 1, 2]], "float32"), nodata=np.nan)
    [band] = validate(infinite).bands
    assert (band.nodata, band.statistics.maximum) == ("nan", 2)


# Footprints.


def test_a_raster_across_the_antimeridian_has_two_parts() -> None:
    footprint = footprint_of(rasterio.crs.CRS.from_epsg(32660), Affine(1000, 0, 600_000, 0, -1000, 5_000_000), 400, 100)
    west, south, east, north = footprint.bbox
    assert west > 175 > -175 > east
    assert footprint.geometry["type"] == "MultiPolygon"
    longitudes = [point[0] for polygon in footprint.geometry["coordinates"] for point in polygon[0]]
    assert max(map(abs, longitudes)) == 180
    assert south < north


@pytest.mark.parametrize(
    "transform, width, height, bbox",
    [
        (Affine(0.25, 0, -180.125, 0, -0.25, 90.125), 1440, 721, (-180, -90, 180, 90)),
        (Affine(1, 0, 0, 0, -1, 10), 360, 10, (-180, 0, 180, 10)),
        (Affine(1, 0, 190, 0, -1, 10), 10, 10, (-170, 0, -160, 10)),
        (Affine(1, 0, 170, 0, -1, 10), 20, 10, (170, 0, -170, 10)),
    ],
)
def test_longitudes_are_between_minus_180_and_180(
    transform: Affine, width: int, height: int, bbox: tuple[float, ...]
) -> None:
    assert footprint_of(rasterio.crs.CRS.from_epsg(4326), transform, width, height).bbox == pytest.approx(bbox)


def test_a_raster_over_a_pole_covers_all_longitudes() -> None:
    for epsg, south, north in ((3413, 60, 90), (3031, -90, -60)):
        footprint = footprint_of(
            rasterio.crs.CRS.from_epsg(epsg), Affine(10_000, 0, -2_000_000, 0, -10_000, 2_000_000), 400, 400
        )
        assert (footprint.bbox[0], footprint.bbox[2]) == (-180, 180)
        assert south <= footprint.bbox[1] < footprint.bbox[3] <= north


@pytest.mark.parametrize(
    "crs, corner, target_crs, west, east",
    [
        ("EPSG:32660", (600_000, 5_000_000), None, 178, -176),
        ("EPSG:32660", (600_000, 5_000_000), "EPSG:3832", 178, -176),
        ("EPSG:3413", (-200_000, 200_000), None, -180, 180),
        ("EPSG:3413", (-200_000, 200_000), "EPSG:3995", -180, 180),
    ],
    ids=["antimeridian", "antimeridian-reprojected", "pole", "pole-reprojected"],
)
def test_rasters_at_the_edges_of_the_map_become_cogs(
    tmp_path: Path, crs: str, corner: tuple[int, int], target_crs: str | None, west: float, east: float
) -> None:
    transform = Affine(10_000, 0, corner[0], 0, -10_000, corner[1])
    values = np.arange(1, 1601, dtype="int16").reshape(40, 40)
    path = write_tiff(tmp_path / "a.tif", values, crs=crs, transform=transform, nodata=0)
    report, info = cog_of(path, tmp_path / "cog.tif", target_crs=target_crs)
    assert report.bbox is not None
    for bbox in (report.bbox, info.bbox):
        assert (bbox[0], bbox[2]) == pytest.approx((west, east), abs=2)
    [band] = info.bands
    assert band.statistics.valid_percent > 45, "the square may be turned by half a right angle"
    assert (band.statistics.minimum, band.statistics.maximum) == pytest.approx((1, 1600), abs=50)
