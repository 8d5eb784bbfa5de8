"""A GeoTIFF in a folder becomes a COG, a version of an asset and an entry of the catalogue."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pystac_client
import pytest
import rasterio
from affine import Affine
from geo_site import shipped
from rasters import DEM, RGB, VRT, write_tiff
from rio_cogeo.cogeo import cog_validate
from web import Web, web

from dagmaster.handlers import raster
from dagmaster.model.graph import Graph

assert raster.MAX_ITEMS  # imported for the handlers that it registers


def ingest() -> Graph:
    return shipped("raster_ingest")


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    bronze = tmp_path / "storage" / "bronze"
    bronze.mkdir(parents=True)
    for source in (RGB, DEM):
        (bronze / source.name).write_bytes(source.read_bytes())
    (bronze / "vrt.tif").write_text(VRT)
    return tmp_path / "storage"


async def submit(
    it: Web, source: str, dataset: str, workflow_id: str = "raster_ingest", **inputs: Any
) -> dict[str, Any]:
    """Submit it for an asset; its version when the job has ended."""
    body = {
        "workflow_id": workflow_id,
        "platform_id": "ddh",
        "platform_refs": {"dataset_id": dataset, "resource_id": "raster", "version_id": "1.0"},
        "data_type": "raster",
        "input_params": {"source": f"bronze/{source}", "collection_id": "hub", **inputs},
    }
    submitted = await it.post("/api/v1/submit", body, 201)
    await it.fleet.ended(int(submitted["job_id"]), seconds=90)
    asset = await it.get(f"/api/v1/assets/{submitted['asset_id']}")
    version: dict[str, Any] = {**asset["versions"][0], "request_id": submitted["request_id"]}
    return version


async def approve(it: Web, version: dict[str, Any], level: str) -> dict[str, Any]:
    reviewed = await it.post(f"/api/v1/assets/{version['asset_id']}/approve", {"clearance_level": level})
    approved: dict[str, Any] = reviewed["version"]
    return approved


async def check_export(it: Web, storage: Path, version: dict[str, Any]) -> None:
    """What is approved and public is outside, byte by byte."""
    await it.fleet.ended(int(version["export_job_id"]))
    exported = await it.get(f"/api/v1/assets/{version['asset_id']}/versions/latest")
    assert exported["external_blob_path"].startswith(f"external/{version['asset_id']}/0/")
    copy, original = storage / exported["external_blob_path"], storage / exported["blob_path"]
    assert copy.read_bytes() == original.read_bytes()


async def check_exported_tiles(it: Web, storage: Path, version: dict[str, Any], tiles: list[Path]) -> None:
    """Each tile is outside, and the index there names the copies."""
    await it.fleet.ended(int(version["export_job_id"]))
    exported = await it.get(f"/api/v1/assets/{version['asset_id']}/versions/latest")
    index = json.loads((storage / exported["external_blob_path"]).read_bytes())
    copies = [storage / feature["properties"]["blob_path"] for feature in index["features"]]
    assert [copy.read_bytes() for copy in copies] == [tile.read_bytes() for tile in tiles]
    assert {copy.parents[2].name for copy in copies} == {version["asset_id"]}


def check_file(storage: Path, version: dict[str, Any], source: Path) -> None:
    """By readers that have no part in making it."""
    cog = storage / version["blob_path"]
    assert cog_validate(cog, strict=True) == (True, [], [])
    with rasterio.open(source) as before, rasterio.open(cog) as after:
        np.testing.assert_array_equal(before.read(), after.read())
        assert list(before.bounds) == pytest.approx(version["bbox"])


async def test_real_rasters_become_cogs_versions_and_entries_of_the_catalogue(dsn: str, storage: Path) -> None:
    async with web(dsn, ingest(), shipped("adf_export"), runs=True) as it:
        dem, rgb = await asyncio.gather(
            submit(it, DEM.name, "dem", acquired_at="2020-05-01T00:00:00Z", title="Elevation"),
            submit(it, RGB.name, "rgb", acquired_at="2021-05-01T00:00:00Z"),
        )
        for version, source in ((dem, DEM), (rgb, RGB)):
            assert (version["processing_status"], version["processing_error"]) == ("completed", None)
            assert version["stac_collection_id"] == "hub"
            check_file(storage, version, source)
        assert list((storage / "mount").iterdir()) == []

        assert (await it.get("/stac/search"))["features"] == [], "nothing is approved"
        assert (await approve(it, dem, "ouo"))["export_job_id"] is None
        await check_export(it, storage, await approve(it, rgb, "public"))
        async with it.real_server() as url:
            results = await asyncio.to_thread(drive, url, dem["bbox"])
        assert [item.id for item in results["all"]] == [rgb["stac_item_id"], dem["stac_item_id"]]
        assert [item.id for item in results["old"]] == [dem["stac_item_id"]]
        assert results["elsewhere"] == []
        [item] = results["old"]
        assert item.properties["platform:dataset_id"] == "dem"
        assert item.properties["platform:version_id"] == "1.0"
        assert item.properties["platform:request_id"] == dem["request_id"]
        assert dem["content_hash"] == f"sha256:{item.assets['data'].extra_fields['file:checksum'].removeprefix('1220')}"
        assert item.bbox == pytest.approx(dem["bbox"])
        service = await it.get(item.assets["data"].href)
        assert service["blob_path"] == dem["blob_path"]

        await it.key("admin")
        public = await it.get("/stac/search")
        assert [feature["id"] for feature in public["features"]] == [rgb["stac_item_id"]]
        await it.get(f"/stac/collections/hub/items/{dem['stac_item_id']}", 404)


def drive(url: str, bbox: list[float]) -> dict[str, list[pystac.Item]]:
    """As a user of the catalogue does."""
    client = pystac_client.Client.open(f"{url}/stac")
    [collection] = client.get_collections()
    assert collection.id == "hub"
    assert len(list(collection.get_items())) == 2
    results = {
        "all": list(client.search(limit=1).items()),
        "by_get": list(client.search(method="GET", limit=1).items()),
        "old": list(client.search(collections=["hub"], bbox=bbox, datetime="2020-01-01/2020-12-31").items()),
        "elsewhere": list(client.search(bbox=[0, 0, 1, 1]).items()),
    }
    assert [item.id for item in results["by_get"]] == [item.id for item in results["all"]]
    point = {"type": "Point", "coordinates": [(bbox[0] + bbox[2]) / 2, (bbox[1] + bbox[3]) / 2]}
    for method in ("GET", "POST"):
        matching = client.search(
            method=method, intersects=point, filter="\"platform:dataset_id\" = 'dem'", filter_lang="cql2-text"
        )
        assert [item.id for item in matching.items()] == [item.id for item in results["old"]], method
        oldest = client.search(method=method, sortby="+properties.datetime", limit=1)
        assert [item.id for item in oldest.items()] == [item.id for item in reversed(results["all"])], method
        [lean, _] = client.search(method=method, fields=["id", "-assets"]).items_as_dicts()
        assert "assets" not in lean and "platform:dataset_id" not in lean["properties"]
    for item in results["all"]:
        pystac.Item.from_dict({**item.to_dict(), "stac_extensions": []}).validate()
        assert (client.search(ids=[item.id]).item_collection_as_dict())["features"][0]["id"] == item.id
    pystac.Collection.from_dict(collection.to_dict()).validate()
    return results


async def test_a_raster_that_cannot_be_used_fails_its_version_and_enters_no_catalogue(dsn: str, storage: Path) -> None:
    async with web(dsn, ingest(), runs=True) as it:
        version = await submit(it, "vrt.tif", "vrt")
        assert version["processing_status"] == "failed"
        assert "is not a TIFF file" in version["processing_error"]
        assert await it.fleet.value("SELECT count(*) FROM dagapp.stac_items") == 0


async def test_the_size_of_a_raster_decides_whether_it_becomes_one_file_or_tiles(dsn: str, storage: Path) -> None:
    values = np.add.outer(np.arange(400), np.arange(900)).astype("uint16")
    source = write_tiff(storage / "bronze" / "wide.tif", values, transform=Affine(0.001, 0, 8, 0, -0.001, 47))
    async with web(dsn, shipped("raster_process"), shipped("adf_export"), runs=True) as it:
        single, tiled = await asyncio.gather(
            submit(it, "wide.tif", "single", "raster_process"),
            submit(it, "wide.tif", "tiled", "raster_process", tile_above_mb=0, tile_size=512, batch_size=1),
        )
        assert (single["processing_error"], tiled["processing_error"]) == (None, None)
        check_file(storage, single, source)
        assert tiled["bbox"] == pytest.approx(single["bbox"])
        index = json.loads((storage / tiled["blob_path"]).read_bytes())
        tiles = [storage / feature["properties"]["blob_path"] for feature in index["features"]]
        assert len(tiles) == 2
        with rasterio.open(tiles[0]) as left, rasterio.open(tiles[1]) as right:
            np.testing.assert_array_equal(np.concatenate([left.read(1), right.read(1)], axis=1), values)
        await check_exported_tiles(it, storage, await approve(it, tiled, "public"), tiles)
        features = (await it.get("/stac/search"))["features"]
        asset_id = tiled["asset_id"]
        assert [feature["id"] for feature in features] == [f"{asset_id}-0-0-1", f"{asset_id}-0-0-0"]
        assert {feature["collection"] for feature in features} == {"raster-tiles"}
        assert list((storage / "mount").iterdir()) == []
