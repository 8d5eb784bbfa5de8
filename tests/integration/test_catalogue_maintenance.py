"""Containers are added to the catalogue, and its entries are rebuilt and repaired from the files of versions."""

import json
from pathlib import Path
from typing import Any

import pystac
import pytest
from asset_rows import add_asset
from fleet import rows
from geo_site import make_cog, run_job, shipped, submit_version
from rasters import DEM, RGB
from vectors import GLACIERS
from web import Web, web

from dagmaster.geo.vector import layer_files
from dagmaster.handlers import catalogue, raster

assert catalogue.MAX_VERSIONS and raster.MAX_ITEMS  # imported for the handlers that they register


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    archive = tmp_path / "storage" / "silver" / "archive"
    make_cog(archive / "dem.tif")
    make_cog(archive / "2020" / "rgb.TIFF", RGB)
    (archive / "striped.tif").write_bytes(DEM.read_bytes())
    (archive / "notes.txt").write_text("no raster")
    return tmp_path / "storage"


async def contents(api: Web) -> dict[str, Any]:
    """The items of the catalogue, whatever their visibility."""
    items = {row["item_id"]: row["content"] for row in await rows(api.dsn, "SELECT * FROM dagapp.stac_items")}
    for item in items.values():
        for band in item["assets"]["data"].get("bands", []):  # Sums of floats differ in the last digits.
            band["statistics"] = {name: round(value, 6) for name, value in band["statistics"].items()}
    return items


async def add_layer(dsn: str, storage: Path) -> None:
    """A version with a vector layer that is missing from the catalogue."""
    target = storage / "silver" / "glaciers.parquet"
    layer = layer_files.prepare(GLACIERS, target)
    await add_asset(
        dsn,
        "glaciers",
        blob_path="silver/glaciers.parquet",
        content_hash=f"sha256:{layer.parquet.sha256}",
        stac_collection_id="vectors",
        processing_completed_at="2026-05-01T00:00:00Z",
    )


async def spoil(api: Web, item_id: str, **documents: Any) -> None:
    """Replace parts of an item, by their paths."""
    for path, value in documents.items():
        keys = "{" + path.replace("__", ",") + "}"
        await rows(
            api.dsn,
            "UPDATE dagapp.stac_items SET content = jsonb_set(content, %s::text[], %s::jsonb) WHERE item_id = %s",
            *(keys, json.dumps(value), item_id),
        )


def reports(nodes: dict[str, Any]) -> dict[str, Any]:
    return {report["asset_id"]: report for report in nodes["reports"]["output"]["results"]}


async def test_a_container_is_catalogued_and_its_entries_are_rebuilt_and_repaired(dsn: str, storage: Path) -> None:
    names = ("stac_catalog_container", "rebuild_stac", "repair_stac_items")
    async with web(dsn, *map(shipped, names), runs=True) as api:
        version = await submit_version(
            api, names[0], "archive", folder="silver/archive", collection_id="hub", batch_size=2, title="Hub"
        )
        await check_container(api, storage, version)
        await check_rebuild(api, storage, version)
        await check_repair(api, storage, version)


async def check_container(api: Web, storage: Path, version: dict[str, Any]) -> None:
    assert (version["processing_status"], version["processing_error"]) == ("completed", None)
    nodes = await api.fleet.nodes(version["job_id"])
    [problem] = nodes["catalogue"]["output"]["problems"]
    assert problem == {"path": "silver/archive/striped.tif", "problem": "striped.tif is not a cloud-optimised GeoTIFF"}
    index = json.loads((storage / version["blob_path"]).read_bytes())
    assert {feature["properties"]["blob_path"] for feature in index["features"]} == {
        "silver/archive/dem.tif",
        "silver/archive/2020/rgb.TIFF",
    }
    await api.post(f"/api/v1/assets/{version['asset_id']}/approve", {"clearance_level": "ouo"})
    features = (await api.get("/stac/search"))["features"]
    assert len(features) == 2
    assert {feature["collection"] for feature in features} == {"hub"}
    for item in (await contents(api)).values():
        pystac.Item.from_dict({**item, "stac_extensions": []}).validate()
        assert item["properties"]["platform:dataset_id"] == "archive"
    assert not list((storage / "mount").glob("*"))


async def check_rebuild(api: Web, storage: Path, version: dict[str, Any]) -> None:
    """The rebuilt items equal the lost ones as far as files and versions contain the data."""
    before = await contents(api)
    await rows(api.dsn, "DELETE FROM dagapp.stac_items")
    await rows(api.dsn, "DELETE FROM dagapp.stac_collections")
    await add_layer(api.dsn, storage)
    outcomes = reports(await run_job(api, "rebuild_stac"))
    assert {(report["outcome"], report["items"]) for report in outcomes.values()} == {("rebuilt", 2), ("rebuilt", 1)}
    after = await contents(api)
    layer = after.pop("glaciers-0")
    pystac.Item.from_dict({**layer, "stac_extensions": []}).validate()
    assert (layer["collection"], layer["properties"]["table:row_count"]) == ("vectors", 134)
    for item_id, item in before.items():  # The time of the registration, or of the end of the processing.
        item["properties"]["datetime"] = after[item_id]["properties"]["datetime"]
    assert after == before


async def check_repair(api: Web, storage: Path, version: dict[str, Any]) -> None:
    good = await contents(api)
    [dem, rgb] = sorted((item_id for item_id in good if item_id != "glaciers-0"), key=lambda name: "rgb" in name)
    assert reports(await run_job(api, "repair_stac_items"))["glaciers"]["outcome"] == "unchanged"
    await spoil(
        api,
        dem,
        bbox=[0, 0, 1, 1],
        links=[],
        assets__data__href="silver/elsewhere.tif",
        **{"assets__data__file:checksum": "1220", "properties__platform:dataset_id": "other"},
    )
    await rows(api.dsn, "DELETE FROM dagapp.stac_items WHERE item_id = %s", rgb)
    await rows(api.dsn, "UPDATE dagapp.stac_items SET item_id = 'stray' WHERE item_id = 'glaciers-0'")
    expected = {
        dem: ["geometry", "file", "checksum", "links", "platform"],
        rgb: ["missing"],
        "glaciers-0": ["missing"],
        "stray": ["surplus"],
    }
    spoiled = await contents(api)
    for dry_run, outcome, items in ((True, "faulty", spoiled), (False, "mended", good)):
        outcomes = reports(await run_job(api, "repair_stac_items", dry_run=dry_run))
        faults = {item["item_id"]: item["faults"] for report in outcomes.values() for item in report["faults"]}
        assert faults == expected
        assert {report["outcome"] for report in outcomes.values()} == {outcome}
        assert await contents(api) == items
    await check_damage(api, storage, version)


async def check_damage(api: Web, storage: Path, version: dict[str, Any]) -> None:
    """An entry is not changed to match a file other than the processed one."""
    good = await contents(api)
    damaged = storage / "silver" / "archive" / "dem.tif"
    make_cog(damaged, RGB)
    (storage / "silver" / "glaciers.parquet").unlink()
    outcomes = reports(await run_job(api, "repair_stac_items"))
    assert {report["outcome"] for report in outcomes.values()} == {"faulty"}
    assert "is not the file that was processed" in outcomes[version["asset_id"]]["problem"]
    assert outcomes["glaciers"]["problem"] == "there is no file silver/glaciers.parquet"
    assert await contents(api) == good
