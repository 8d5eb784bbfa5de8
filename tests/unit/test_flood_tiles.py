"""Flood tiles: their names, what is refused, and every pixel of what they become."""

from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import rasterio
from affine import Affine
from flood_tiles import COASTAL, FLUVIAL, NODATA, folder_of, merged, transform_of, write_tile, write_tiles
from obstore.store import MemoryStore
from rasters import VRT
from rio_cogeo.cogeo import cog_validate

from dagmaster.errors import Invalid
from dagmaster.geo.flood.names import DEFAULT_PATTERN, NamePattern, Place, parse_place, take_inventory
from dagmaster.handlers import Checkpoint, HandlerContext, HandlerResult, call, raster, registry
from dagmaster.storage import objects

assert raster.MAX_ITEMS  # imported for the handlers that it registers

FLUVIAL_NAME = "1ARCSEC-NW_OFFSET-FLUVIAL-UNDEFENDED-2020-PERCENTILE50-v3.1"


# Names.


def test_a_name_says_scenario_return_period_and_place() -> None:
    name = NamePattern(DEFAULT_PATTERN).match(f"bronze/x/{folder_of(1000)}/n04w006.tif")
    assert name is not None
    assert (name.return_period, name.place) == (1000, Place(latitude=4, longitude=-6))
    assert name.scenario == {
        "resolution": "1ARCSEC",
        "offset": "NW_OFFSET",
        "flood_type": "FLUVIAL",
        "defence": "UNDEFENDED",
        "period": "2020-PERCENTILE50-v3.1",
    }


@pytest.mark.parametrize(
    "path",
    [
        "n04w006.tif",
        f"{folder_of(5)}/n04w006.tif.aux.xml",
        f"{folder_of(5)}/n91w006.tif",
        f"{folder_of(5)}/n04w181.tif",
        f"{folder_of(5)}/readme.tif",
        f"{folder_of(5).replace('1in5', '1inX')}/n04w006.tif",
    ],
)
def test_other_names_do_not_match(path: str) -> None:
    assert NamePattern(DEFAULT_PATTERN).match(path) is None


def test_a_pattern_may_be_of_any_form() -> None:
    name = NamePattern("{flood_type}_rp{return_period}_{tile}.tiff").match("a/b/coastal_rp20_S12E130.tiff")
    assert name is not None
    assert (name.scenario, name.return_period, name.place.name) == ({"flood_type": "coastal"}, 20, "s12e130")


@pytest.mark.parametrize(
    "pattern, problem",
    [
        ("{tile}.tif", "must have the placeholder {return_period}"),
        ("{return_period}.tif", "must have the placeholder {tile}"),
        ("{tile}-{return_period}-{a}-{a}", "has a placeholder twice"),
        ("{tile}{return_period}", "without a character between"),
        ("{tile}-{return_period}-{A}", "name of small letters in braces"),
        ("{tile}-{return_period}" + "-" * 500, "more than 500 characters"),
    ],
)
def test_a_pattern_that_cannot_work_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        NamePattern(pattern)


def test_a_hostile_pattern_and_name_take_no_time() -> None:
    pattern = NamePattern("-".join(f"{{{letter * 3}}}_" for letter in "abcdefghijklmnop") + "{tile}-{return_period}")
    assert pattern.match("a_-" * 300) is None
    assert pattern.match("-" * 1000) is None


@pytest.mark.parametrize(
    "tile, degrees, cell",
    [
        ("n04w006", 5, "n00w010"),
        ("n05e000", 5, "n05e000"),
        ("s01w001", 5, "s05w005"),
        ("s90w180", 10, "s90w180"),
        ("n07e179", 2, "n06e178"),
    ],
)
def test_tiles_belong_to_the_cell_that_they_are_in(tile: str, degrees: int, cell: str) -> None:
    place = parse_place(tile)
    assert place is not None
    assert (place.name, place.cell(degrees).name) == (tile, cell)


def test_all_missing_and_doubled_files_are_named() -> None:
    pattern = NamePattern("{kind}-1in{return_period}/{tile}.tif")
    paths = ["x/a-1in5/n00e000.tif", "x/a-1in5/n01e000.tif", "x/a-1in10/n01e000.tif", "y/a-1in10/n01e000.tif"]
    with pytest.raises(Invalid) as refused:
        take_inventory(paths, pattern, (5, 10, 20))
    for problem in (
        "n00e000 of a has no file for 1in10, 1in20",
        "n01e000 of a has no file for 1in20",
        "x/a-1in10/n01e000.tif and y/a-1in10/n01e000.tif are the same tile",
    ):
        assert problem in str(refused.value)
    inventory = take_inventory([*paths[:3], "x/a-1in2/n01e000.tif", "notes.txt"], pattern, (5,))
    assert ([tile.files for tile in inventory.tiles], inventory.skipped) == ([paths[:1], paths[1:2]], 3)


def test_two_scenarios_never_share_a_name() -> None:
    pattern = NamePattern("{a}/{b}/1in{return_period}/{tile}.tif")
    with pytest.raises(Invalid, match="two scenarios would be named x-y-z"):
        take_inventory(["x-y/z/1in5/n00e000.tif", "x/y-z/1in5/n00e000.tif"], pattern, (5,))


# Handlers.


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DAGMASTER_RASTER_PROCESSES", "1")
    return tmp_path / "storage"


async def run(name: str, params: dict[str, Any], **fields: Any) -> HandlerResult:
    ids: dict[str, Any] = {"task_id": "7_a_0", "job_id": 7, "node_id": "a", "handler": name}
    return await call(registry.get(name), HandlerContext(**{**ids, **fields}, params=params), executor=None)


async def output(name: str, **params: Any) -> dict[str, Any]:
    result = await run(name, params)
    assert result.success, result.error_message
    return result.output or {}


async def stacks_of(**inventory: Any) -> list[dict[str, Any]]:
    found = await output("fathom_tile_inventory", folder="bronze/flood", **inventory)
    batches = [await output("fathom_band_stack", tiles=batch) for batch in found["batches"]]
    return [stack for batch in batches for stack in batch["stacks"]]


async def cells_of(**inventory: Any) -> list[dict[str, Any]]:
    grid = await output("fathom_grid_inventory", stacks=await stacks_of(**inventory))
    assert grid["cell_count"] == len(grid["cells"])
    cells: list[dict[str, Any]] = grid["cells"]
    return cells


async def refusal() -> str:
    """Why the tiles in the storage become no files, for good."""
    found = await run("fathom_tile_inventory", {"folder": "bronze/flood"})
    if not found.success:
        assert found.permanent
        return found.error_message or ""
    tiles = [tile for batch in (found.output or {})["batches"] for tile in batch]
    stacked = await run("fathom_band_stack", {"tiles": tiles})
    if not stacked.success:
        assert stacked.permanent
        return stacked.error_message or ""
    grid = await run("fathom_grid_inventory", stacked.output or {})
    assert grid.permanent
    return grid.error_message or ""


async def test_every_pixel_of_every_return_period_is_that_of_its_source(storage: Path) -> None:
    bronze, side = storage / "bronze" / "flood", 300
    tiles = ["n01w002", "n01w001", "n02w002"]  # A corner is missing: tiles without land are not delivered.
    write_tiles(bronze, tiles, side=side, tiled=True, blockxsize=64, blockysize=64)
    [cell] = await cells_of(batch_size=2)
    assert (cell["key"], len(cell["tiles"])) == (f"{FLUVIAL_NAME} n00w005", 3)
    assert (cell["width"], cell["height"], cell["bbox"]) == (600, 600, pytest.approx([-2, 1, 0, 3]))
    made = await output("fathom_spatial_merge", cell=cell)
    path = storage / made["file"]["blob_path"]
    assert path.name == f"{FLUVIAL_NAME}_n00w005.tif"
    assert cog_validate(path, strict=True) == (True, [], [])
    with rasterio.open(path) as dataset:
        np.testing.assert_array_equal(dataset.read(), merged(bronze, tiles, side=side))
        assert dataset.descriptions == ("1in5", "1in10", "1in20", "1in50", "1in100", "1in200", "1in500", "1in1000")
        assert (dataset.nodata, dataset.dtypes[0]) == (NODATA, "int16")
        assert dataset.transform.almost_equals(Affine(1 / side, 0, -2, 0, -1 / side, 3))
        assert (dataset.dataset_mask()[:side, side:] == 0).all()
        assert set(np.unique(dataset.read(out_shape=(8, 300, 300)))) <= set(np.unique(dataset.read())), "nearest"
    assert not list((storage / "mount" / "7").iterdir())


async def test_scenarios_and_cells_have_files_of_their_own(storage: Path) -> None:
    bronze = storage / "bronze" / "flood"
    places = {FLUVIAL: ["n04w006", "n04w005", "s01w006"], COASTAL: ["n04w006"]}
    for scenario, tiles in places.items():
        write_tiles(bronze, tiles, scenario=scenario)
    outputs = [await output("fathom_spatial_merge", cell=cell) for cell in await cells_of()]
    registered = await output("fathom_stac_register", merged=outputs, collection_id="flood", asset_id="abc")
    coastal = "1ARCSEC-NW_OFFSET-COASTAL-DEFENDED-2030-SSP2_4.5-v3.1"
    items = {item["id"]: item for item in registered["stac_items"]}
    expected = {
        f"abc-0-{coastal}-n00w010": (COASTAL, ["n04w006"]),
        f"abc-0-{FLUVIAL_NAME}-s05w010": (FLUVIAL, ["s01w006"]),
        f"abc-0-{FLUVIAL_NAME}-n00w010": (FLUVIAL, ["n04w006"]),
        f"abc-0-{FLUVIAL_NAME}-n00w005": (FLUVIAL, ["n04w005"]),
    }
    assert set(items) == set(expected)
    for item_id, (scenario, tiles) in expected.items():
        data = items[item_id]["assets"]["data"]
        assert [band["name"] for band in data["bands"]][:2] == ["1in5", "1in10"]
        with rasterio.open(storage / data["href"]) as dataset:
            np.testing.assert_array_equal(dataset.read(), merged(bronze, tiles, scenario=scenario))
    assert registered["item_count"] == 4
    assert registered["bbox"] == pytest.approx([-6, -1, -4, 5])


async def test_a_tile_with_a_missing_return_period_is_refused(storage: Path) -> None:
    write_tiles(storage / "bronze" / "flood", ["n00e000", "n00e001"])
    (storage / "bronze" / "flood" / folder_of(100) / "n00e001.tif").unlink()
    assert await refusal() == f"n00e001 of {FLUVIAL_NAME} has no file for 1in100"


@pytest.mark.parametrize(
    "wrong, problem",
    [
        ({"nodata": -1}, "in nodata: -1.0 instead of -32768.0"),
        ({"crs": "EPSG:4269"}, "in CRS: EPSG:4269 instead of EPSG:4326"),
        ({"values": np.zeros((30, 30), "float32"), "nodata": NODATA}, "in bands or types: ['float32'"),
        ({"transform": transform_of("n00e001", 30) * Affine.translation(0.02, 0)}, "it is 0.020 px beside it"),
        ({"transform": transform_of("n00e001", 29)}, "its pixels have another size"),
    ],
    ids=["nodata", "crs", "type", "off-grid", "pixel-size"],
)
@pytest.mark.parametrize("is_whole_tile", [False, True])
async def test_files_that_do_not_fit_are_refused(
    storage: Path, wrong: dict[str, Any], problem: str, is_whole_tile: bool
) -> None:
    """Within a tile and between tiles."""
    bronze = storage / "bronze" / "flood"
    write_tiles(bronze, ["n00e000", "n00e001"])
    periods = (5, 10, 20, 50, 100, 200, 500, 1000) if is_whole_tile else (50,)
    for period in periods:
        write_tile(bronze, "n00e001", period, **wrong)
    message = await refusal()
    assert problem in message
    assert f"bronze/flood/{folder_of(5 if is_whole_tile else 50)}/n00e001.tif" in message


async def test_a_hundredth_of_a_pixel_is_tolerated_and_snapped(storage: Path) -> None:
    bronze = storage / "bronze" / "flood"
    write_tiles(bronze, ["n00e000"])
    write_tiles(bronze, ["n00e001"], transform=transform_of("n00e001", 30) * Affine.translation(0.009, -0.009))
    [cell] = await cells_of()
    made = await output("fathom_spatial_merge", cell=cell)
    with rasterio.open(storage / made["file"]["blob_path"]) as dataset:
        np.testing.assert_array_equal(dataset.read(), merged(bronze, ["n00e000", "n00e001"]))


async def test_missing_tiles_are_masked_where_the_files_have_no_nodata_value(storage: Path) -> None:
    bronze, tiles = storage / "bronze" / "flood", ["n00e000", "n01e001"]
    write_tiles(bronze, tiles, nodata=None)
    [cell] = await cells_of()
    made = await output("fathom_spatial_merge", cell=cell)
    with rasterio.open(storage / made["file"]["blob_path"]) as dataset:
        expected = np.zeros((60, 60), "uint8")
        expected[30:, :30] = expected[:30, 30:] = 255
        np.testing.assert_array_equal(dataset.dataset_mask(), expected)
        valid = expected > 0
        np.testing.assert_array_equal(dataset.read()[:, valid], merged(bronze, tiles)[:, valid])


@pytest.mark.parametrize(
    "wrong, problem",
    [
        ({"values": np.zeros((2, 30, 30), "int16")}, "has 2 bands instead of one"),
        ({"transform": transform_of("n00e001", 30)}, "does not cover the pixels of"),
        ({"transform": Affine(1 / 30, 0.001, 0, 0, -1 / 30, 1)}, "has no CRS or a rotated grid"),
        ({"crs": None}, "has no CRS or a rotated grid"),
    ],
    ids=["bands", "place", "rotated", "no-crs"],
)
async def test_files_that_are_no_bands_of_one_tile_are_refused(
    storage: Path, wrong: dict[str, Any], problem: str
) -> None:
    write_tiles(storage / "bronze" / "flood", ["n00e000"])
    write_tile(storage / "bronze" / "flood", "n00e000", 50, **wrong)
    message = await refusal()
    assert problem in message
    assert f"{folder_of(50)}/n00e000.tif" in message


async def test_a_tile_that_is_not_where_its_name_says_is_refused(storage: Path) -> None:
    write_tiles(storage / "bronze" / "flood", ["n00e000"], transform=transform_of("n04e000", 30))
    assert "is named after n00e000, but its pixels are in 0, 4, 1, 5" in await refusal()


async def test_a_virtual_dataset_in_a_tile_is_refused_whenever_it_is_put_there(storage: Path) -> None:
    bronze = storage / "bronze" / "flood"
    write_tiles(bronze, ["n00e000"])
    [cell] = await cells_of()
    (bronze / folder_of(20) / "n00e000.tif").write_text(VRT)
    assert f"{folder_of(20)}/n00e000.tif: n00e000.tif is not a TIFF file" in await refusal()
    result = await run("fathom_spatial_merge", {"cell": cell})
    assert result.permanent
    assert "is not a TIFF file" in (result.error_message or "")


@pytest.mark.parametrize(
    "params, problem",
    [
        ({"folder": "bronze/flood"}, "no file of bronze/flood has a name such as"),
        ({"folder": "bronze/flood", "pattern": "{tile}"}, "must have the placeholder"),
        ({"folder": "bronze/flood", "return_periods": [5, 5]}, "a return period is there twice"),
        ({"folder": "/etc"}, "outside of the storage zones"),
    ],
)
async def test_a_bad_inventory_fails_for_good(storage: Path, params: dict[str, Any], problem: str) -> None:
    result = await run("fathom_tile_inventory", params)
    assert result.permanent
    assert problem in (result.error_message or "")


async def test_stacks_can_be_files_too(storage: Path) -> None:
    bronze = storage / "bronze" / "flood"
    write_tiles(bronze, ["n00e000"])
    found = await output("fathom_tile_inventory", folder="bronze/flood")
    stacked = await output("fathom_band_stack", tiles=found["batches"][0], folder="silver/stacks")
    [stack] = stacked["stacks"]
    assert stack["stored"]["blob_path"] == f"silver/stacks/{FLUVIAL_NAME}_n00e000.tif"
    with rasterio.open(storage / stack["stored"]["blob_path"]) as dataset:
        np.testing.assert_array_equal(dataset.read(), merged(bronze, ["n00e000"]))


async def test_another_attempt_goes_on_with_the_superblocks_that_are_made(storage: Path) -> None:
    write_tiles(storage / "bronze" / "flood", ["n00e000"])
    [cell] = await cells_of()

    def fail(_: Checkpoint) -> None:
        raise OSError("the disk is full")

    assert not (await run("fathom_spatial_merge", {"cell": cell}, checkpoint_sink=fail)).success
    [left] = (storage / "mount" / "7" / "a.work").iterdir()
    assert (left / "superblocks" / "0-0-0.json").exists()
    saved: list[Checkpoint] = []
    again = await run("fathom_spatial_merge", {"cell": cell}, retry_count=1, checkpoint_sink=saved.append)
    assert (again.success, saved) == (True, []), "nothing is left to make"


async def test_tiles_of_a_container_are_copied_for_as_long_as_they_are_needed(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They all have the same name."""
    container = MemoryStore()
    monkeypatch.setenv("DAGMASTER_STORAGE_BRONZE", "s3://deliveries")
    monkeypatch.setattr(objects, "_open", lambda _: container)
    write_tiles(tmp_path / "delivered", ["n00e000"])
    for path in (tmp_path / "delivered").rglob("*.tif"):
        obstore.put(container, f"flood/{path.relative_to(tmp_path / 'delivered')}", path.read_bytes())
    [cell] = await cells_of()
    assert len(list((storage / "mount" / "7").rglob("*.tif"))) == 8
    made = await output("fathom_spatial_merge", cell=cell)
    with rasterio.open(storage / made["file"]["blob_path"]) as dataset:
        np.testing.assert_array_equal(dataset.read(), merged(tmp_path / "delivered", ["n00e000"]))
    assert not list((storage / "mount" / "7").rglob("*.tif"))
