"""Rasters of versions are drawn for permitted callers, within fixed limits."""

import gzip
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import obstore
import pytest
import rasterio
from asset_rows import add_asset, add_version
from obstore.store import from_url
from pmtiles.tile import Compression, TileType, zxy_to_tileid
from pmtiles.writer import Writer
from rasterio.errors import NotGeoreferencedWarning
from rasterio.io import MemoryFile
from rasterio.warp import transform_bounds
from rasters import DEM, RGB, VRT, write_tiff
from s3_server import run_s3
from web import Web, web

from dagmaster.model.access import Role
from dagmaster.web.api import tiles

TILE = "tiles/WebMercatorQuad/9/105/193"  # In the middle of both real rasters.
DEM_PATH, RGB_PATH = f"silver/{DEM.name}", f"silver/{RGB.name}"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    silver = tmp_path_factory.mktemp("data") / "storage" / "silver"
    silver.mkdir(parents=True)
    for source in (RGB, DEM):
        (silver / source.name).write_bytes(source.read_bytes())
    (silver / "vrt.tif").write_text(VRT)
    write_tiff(silver / "large.tif", np.zeros((600, 600), "uint8"))
    write_tiff(silver / "bands.tif", np.arange(6 * 48 * 64, dtype="float32").reshape(6, 48, 64))
    return silver


@asynccontextmanager
async def site(dsn: str, storage: Path, **settings: Any) -> AsyncIterator[Web]:
    async with web(dsn, data_dir=storage.parents[1], **settings) as api:
        yield api


async def add_raster(dsn: str, asset_id: str, blob_path: str, **columns: Any) -> str:
    return await add_asset(dsn, asset_id, data_type="raster", blob_path=blob_path, **columns)


async def image(api: Web, path: str, **options: Any) -> Any:
    """The pixels of an image, bands first."""
    answer = await api.client.get(path, **options)
    assert answer.status_code == 200, answer.text
    with warnings.catch_warnings(), MemoryFile(answer.content) as file:
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with file.open() as opened:
            return opened.read()


async def test_a_tile_shows_the_pixels_of_the_file(dsn: str, storage: Path) -> None:
    await add_raster(dsn, "rgb", RGB_PATH)
    async with site(dsn, storage) as api:
        tilejson = await api.get("/tiles/rgb/WebMercatorQuad/tilejson.json?tilesize=256")
        assert tilejson["tiles"] == [
            f"http://127.0.0.1/tiles/rgb/{TILE.rpartition('/9/')[0]}/{{z}}/{{x}}/{{y}}?tilesize=256"
        ]
        drawn = await image(api, f"/tiles/rgb/{TILE}.png")
        assert drawn.shape == (4, 256, 256)
        with rasterio.open(RGB) as original:
            assert tilejson["bounds"] == pytest.approx(
                transform_bounds(original.crs, "EPSG:4326", *original.bounds), abs=1e-3
            )
            colours = {tuple(pixel) for pixel in original.read().reshape(3, -1).T.tolist()}
        # A pixel with 255, the file's nodata, in some bands gets other values there.
        is_whole = (drawn[3] == 255) & (drawn[:3].min(axis=0) > 0) & (drawn[:3].max(axis=0) < 253)
        pixels = drawn[:3, is_whole].T.tolist()
        assert len(pixels) > 10_000
        assert {tuple(pixel) for pixel in pixels} <= colours, "the nearest pixel is drawn, none is invented"
        assert drawn[3].min() == 0, "around the data it is transparent"


async def test_a_tile_is_drawn_while_other_threads_change_the_filters_of_warnings(
    dsn: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters belong to the process: a tile of another thread may undo the one that rio-tiler sets for this tile."""
    undone = SimpleNamespace(catch_warnings=nullcontext, filterwarnings=lambda *_, **__: None)
    monkeypatch.setattr("rio_tiler.utils.warnings", undone)
    await add_raster(dsn, "rgb", RGB_PATH)
    async with site(dsn, storage) as it:
        for suffix in ("png", "webp", "jpg"):
            await image(it, f"/tiles/rgb/{TILE}.{suffix}")


async def test_the_image_type_follows_the_path_or_the_accept_header(dsn: str, storage: Path) -> None:
    await add_raster(dsn, "dem", DEM_PATH)
    async with site(dsn, storage) as api:
        for path, accept, kind in (
            (f"{TILE}.png", "*/*", "image/png"),
            (f"{TILE}.webp", "image/png", "image/webp"),
            (f"{TILE}.jpg", "*/*", "image/jpeg"),
            (TILE, "image/webp,*/*;q=0.1", "image/webp"),
            (TILE, "*/*", "image/png"),
            ("preview", "image/jpeg", "image/jpeg"),
        ):
            answer = await api.client.get(f"/tiles/dem/{path}", headers={"accept": accept})
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind), path
        await api.get(f"/tiles/dem/{TILE}.tif", 422)


async def test_point_statistics_and_legend_return_values(dsn: str, storage: Path) -> None:
    await add_raster(dsn, "dem", DEM_PATH)
    await add_raster(dsn, "rgb", RGB_PATH)
    async with site(dsn, storage) as api:
        with rasterio.open(DEM) as original:
            [[expected]] = original.sample([(-105.7, 40.3)])
            values = original.read(masked=True)
        assert (await api.get("/tiles/dem/point/-105.7,40.3"))["values"] == [expected]
        band = (await api.get("/tiles/dem/statistics"))["b1"]
        assert (band["min"], band["max"]) == (values.min(), values.max())
        assert band["mean"] == pytest.approx(values.mean())
        legend = await api.get("/tiles/dem/legend?colormap_name=terrain")
        assert legend["kind"] == "gradient"
        ends = legend["entries"][0]["value"], legend["entries"][-1]["value"]
        assert ends == pytest.approx(np.percentile(values.compressed(), (2, 98)), abs=5)
        assert legend["entries"][0]["colour"] == "#333399"
        chosen = await api.get("/tiles/dem/legend?colormap_name=terrain&rescale=0,80")
        assert [entry["value"] for entry in chosen["entries"]] == [0, 10, 20, 30, 40, 50, 60, 70, 80]
        assert (await api.get("/tiles/rgb/legend"))["kind"] == "picture"
        drawn = await image(api, "/tiles/dem/preview/20x10.png?colormap_name=terrain")
        assert drawn.shape == (4, 10, 20)


async def test_each_caller_gets_tiles_only_of_permitted_data(dsn: str, storage: Path) -> None:
    await add_raster(dsn, "public", DEM_PATH, clearance="public")
    await add_version(dsn, "public", 1, is_approved=False, blob_path=RGB_PATH)
    await add_raster(dsn, "ouo", DEM_PATH)
    await add_raster(dsn, "uncleared", DEM_PATH, clearance="uncleared", latest=None)
    async with site(dsn, storage) as api:
        keys = {
            "reviewer": await api.key("reviewer", Role.REVIEWER, platform_id="ddh"),
            "other reviewer": await api.key("other", Role.REVIEWER, platform_id="arcgis"),
            "viewer": await api.key("viewer", Role.VIEWER),
            "partner": await api.key("partner", Role.PARTNER, platform_id="ddh"),
            "nobody": {},
        }
        paths = {
            "public": "/tiles/public/info",
            "ouo": "/tiles/ouo/info",
            "unapproved": "/tiles/public/info?version=1",
            "preview": "/tiles/public/info?version=1&preview=true",
            "first preview": "/tiles/uncleared/info?version=0&preview=true",
        }
        seen = {
            name: [(await api.client.get(path, headers=headers)).status_code for path in paths.values()]
            for name, headers in keys.items()
        }
        assert seen == {
            "reviewer": [200, 200, 404, 200, 200],
            "other reviewer": [200, 404, 404, 403, 403],
            "viewer": [200, 200, 404, 403, 403],
            "partner": [200, 404, 404, 403, 403],
            "nobody": [200, 404, 404, 403, 403],
        }
        await api.get("/tiles/public/info", 401, headers={"Authorization": "Bearer dm_wrong"})
        await api.get("/tiles/unknown/info", 404)


async def test_caches_must_revalidate_unless_the_data_is_public(dsn: str, storage: Path) -> None:
    await add_raster(dsn, "ouo", DEM_PATH, content_hash="sha256:1")
    await add_raster(dsn, "public", DEM_PATH, clearance="public")
    async with site(dsn, storage) as api:
        path = f"/tiles/ouo/{TILE}.png"
        first = await api.client.get(path)
        assert first.headers["cache-control"] == "private, no-cache"
        known = {"If-None-Match": first.headers["etag"]}
        again = await api.client.get(path, headers=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        other = await api.client.get(f"{path}?colormap_name=terrain", headers=known)
        assert other.status_code == 200
        await api.fleet.value("UPDATE dagapp.asset_versions SET revision = 2 WHERE asset_id = 'ouo' RETURNING 1")
        assert (await api.client.get(path, headers=known)).status_code == 200, "it was processed again"
        await api.fleet.value("UPDATE dagapp.asset_versions SET deleted_at = now() WHERE asset_id = 'ouo' RETURNING 1")
        assert (await api.client.get(path, headers=known)).status_code == 404
        public = await api.client.get(f"/tiles/public/{TILE}.png")
        assert public.headers["cache-control"] == "public, max-age=300"


REFUSED = {
    f"{TILE}?url=file:///etc/passwd": "unknown parameter 'url'",
    f"{TILE}?expression=b1*2": "unknown parameter 'expression'",
    f"{TILE}?algorithm=hillshade": "unknown parameter 'algorithm'",
    f"{TILE}?colormap={{}}": "unknown parameter 'colormap'",
    f"{TILE}?buffer=1000": "unknown parameter 'buffer'",
    f"{TILE}?asset_id=ouo": "unknown parameter 'asset_id'",
    "point/0,0?coord_crs=/etc/passwd": "unknown parameter 'coord_crs'",
    "preview?dst_crs=EPSG:3857": "unknown parameter 'dst_crs'",
    f"{TILE}?tilesize=1025": "tilesize",
    f"{TILE}?bidx=1&bidx=1&bidx=1&bidx=1&bidx=1": "bidx",
    f"{TILE}?bidx=2": "the raster has 1 bands",
    f"{TILE}?rescale=5,1": "rescale",
    f"{TILE}?rescale=nan,1": "rescale",
    f"{TILE}?colormap_name=unknown": "colormap_name",
    "preview?max_size=2049": "max_size",
    "preview/1x2049.png": "height",
    "statistics?histogram_bins=257": "histogram_bins",
}


async def test_callers_cannot_pass_urls_formulas_or_unbounded_sizes(dsn: str, storage: Path) -> None:
    await add_raster(dsn, "dem", DEM_PATH)
    async with site(dsn, storage) as api:
        for path, message in REFUSED.items():
            assert message in (await api.get(f"/tiles/dem/{path}", 422))["detail"], path
        for path in ("tiles/WebMercatorQuad/9/0/0", "tiles/WebMercatorQuad/60/1/1", "point/0,0", "map.html", ""):
            await api.get(f"/tiles/dem/{path}", 404)
        await api.post("/tiles/dem/feature", {}, 405)
        await api.post("/tiles/dem/statistics", {}, 405)


async def test_an_unusable_raster_is_refused(dsn: str, storage: Path) -> None:
    await add_raster(dsn, "vrt", "silver/vrt.tif")
    await add_raster(dsn, "missing", "silver/missing.tif")
    await add_raster(dsn, "large", "silver/large.tif")
    await add_raster(dsn, "outside", "/etc/passwd")
    await add_asset(dsn, "table", data_type="vector")
    async with site(dsn, storage) as api:
        for asset_id, status, message in (
            ("vrt", 422, "is not a TIFF file"),
            ("missing", 404, "there is no file"),
            ("large", 422, "has no overviews"),
            ("outside", 422, "outside of the storage zones"),
            ("table", 404, "has no raster"),
        ):
            answer = await api.get(f"/tiles/{asset_id}/info", status)
            assert message in answer["detail"]


async def test_without_the_libraries_the_server_names_what_to_install(
    dsn: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "TILE_ROUTES", "titiler_that_is_not_installed")
    async with site(dsn, storage) as api:
        answer = await api.get("/tiles/any/info", 503)
        assert "pip install 'dagmaster[serve]'" in answer["detail"]
        await api.get("/tiles/any/data.pmtiles", 404)


async def test_the_first_bands_are_drawn_unless_others_are_named(dsn: str, storage: Path) -> None:
    await add_raster(dsn, "bands", "silver/bands.tif")
    async with site(dsn, storage) as api:
        assert (await image(api, "/tiles/bands/preview.png")).shape == (2, 48, 64)
        assert (await image(api, "/tiles/bands/preview.png?bidx=6&bidx=5&bidx=4")).shape == (4, 48, 64)
        assert list(await api.get("/tiles/bands/statistics?bidx=2&bidx=6")) == ["b2", "b6"]
        assert len((await api.get("/tiles/bands/point/10.1,49.9"))["values"]) == 6


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with run_s3("rasters") as address:
        environment = {
            "AWS_ENDPOINT": address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "very-secret",
            "AWS_REGION": "us-east-1",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield "s3://rasters"


async def test_a_raster_in_an_object_store_is_read_by_ranges(dsn: str, storage: Path, bucket: str) -> None:
    obstore.put(from_url(bucket), "dems/dem.tif", DEM.read_bytes())
    await add_raster(dsn, "remote", "silver/dems/dem.tif")
    await add_raster(dsn, "missing", "silver/dems/missing.tif")
    async with site(dsn, storage, storage_silver=bucket) as api:
        drawn = await image(api, f"/tiles/remote/{TILE}.png")
        assert drawn[-1].any()
        answer = await api.get("/tiles/missing/info", 503)
        assert "very-secret" not in str(answer)


def write_archive(path: Path) -> None:
    with path.open("wb") as file:
        writer = Writer(file)
        writer.write_tile(zxy_to_tileid(0, 0, 0), gzip.compress(b"world"))
        writer.write_tile(zxy_to_tileid(1, 1, 0), gzip.compress(b"north-east"))
        header = {
            "tile_type": TileType.MVT,
            "tile_compression": Compression.GZIP,
            "min_zoom": 0,
            "max_zoom": 1,
            "min_lon_e7": 0,
            "min_lat_e7": 0,
            "max_lon_e7": 100_000_000,
            "max_lat_e7": 500_000_000,
            "center_zoom": 0,
            "center_lon_e7": 0,
            "center_lat_e7": 0,
        }
        writer.finalize(header, {"vector_layers": [{"id": "features", "fields": {"name": "String"}}]})


async def test_vector_tiles_are_read_one_by_one_from_the_archive(dsn: str, storage: Path) -> None:
    write_archive(storage / "counties.pmtiles")
    await add_asset(dsn, "counties", blob_path="silver/counties.parquet", table_name=None)
    async with site(dsn, storage) as api:
        tilejson = await api.get("/tiles/counties/vector/tilejson.json?version=0")
        assert tilejson["tiles"] == ["http://127.0.0.1/tiles/counties/vector/{z}/{x}/{y}.mvt?version=0"]
        assert (tilejson["minzoom"], tilejson["maxzoom"], tilejson["bounds"]) == (0, 1, [0, 0, 10, 50])
        assert tilejson["vector_layers"][0]["id"] == "features"
        for place, status, content in (
            ("0/0/0", 200, b"world"),
            ("1/1/0", 200, b"north-east"),
            ("1/0/0", 204, b""),
            ("0/5/5", 204, b""),
            ("99/0/0", 422, None),
        ):
            answer = await api.client.get(f"/tiles/counties/vector/{place}.mvt")
            assert answer.status_code == status, place
            assert content in (None, answer.content)
        tile = await api.client.get("/tiles/counties/vector/0/0/0.mvt")
        assert tile.headers["cache-control"] == "private, no-cache"
        await api.key("admin")
        await api.get("/tiles/counties/vector/0/0/0.mvt", 404)


async def test_vector_tiles_are_read_by_ranges_by_permitted_callers(dsn: str, storage: Path) -> None:
    content = bytes(range(256)) * 8
    (storage / "parcels.pmtiles").write_bytes(content)
    await add_asset(dsn, "parcels", blob_path="silver/parcels.parquet")
    await add_asset(dsn, "unmade", blob_path="silver/unmade.parquet")
    path = "/tiles/parcels/data.pmtiles"
    async with site(dsn, storage) as api:
        whole = await api.client.get(path)
        assert (whole.status_code, whole.content) == (200, content)
        assert whole.headers["cache-control"] == "private, no-cache"
        etag = whole.headers["etag"]
        for header, status, expected in (
            ("bytes=0-16", 206, content[:17]),
            ("bytes=2040-", 206, content[2040:]),
            ("bytes=-8", 206, content[-8:]),
            ("bytes=2000-99999", 206, content[2000:]),
            ("bytes=5-4", 200, content),
            ("bytes=0-1,4-5", 200, content),
            ("lines=1-2", 200, content),
            ("bytes=2048-", 416, b""),
        ):
            part = await api.client.get(path, headers={"Range": header})
            assert (part.status_code, part.content) == (status, expected), header
        part = await api.client.get(path, headers={"Range": "bytes=10-19", "If-Range": etag})
        assert part.headers["content-range"] == "bytes 10-19/2048"
        assert (await api.client.get(path, headers={"Range": "bytes=10-19", "If-Range": '"old"'})).status_code == 200
        assert (await api.client.get(path, headers={"If-None-Match": etag})).status_code == 304
        assert "there is no file" in (await api.get("/tiles/unmade/data.pmtiles", 404))["detail"]
        await api.key("admin")
        assert (await api.client.get(path)).status_code == 404
