"""W11: what map clients ask for over HTTP: tiles of a raster, and the items of a catalogue in a box."""

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import httpx
import numpy as np
import psycopg
import rasterio
from rasterio.transform import from_bounds
from rasterio.windows import Window

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.fleet import started
from benchmarks.place import Place
from benchmarks.scale import Scale
from dagmaster.geo.raster.cog import write_image
from dagmaster.geo.raster.image import resolve_image
from dagmaster.geo.raster.profiles import Profile

TILE_MS, SEARCH_MS = 100.0, 20.0
ZOOM = 10
WEST, SOUTH, EAST, NORTH = 5.0, 45.0, 11.0, 51.0
STRIP_ROWS = 512
SEED = 11
PROFILE = Profile(compression="ZSTD", level=1, predictor=3, resampling="bilinear", overview_resampling="average")
ADD_ASSET = """
INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, data_type, clearance_state,
    latest_approved_version_ordinal, next_ordinal)
VALUES ('bench', 'ddh', '{"dataset_id": "bench"}', 'raster', 'public', 0, 1);
INSERT INTO dagapp.asset_versions (asset_id, version_ordinal, approval_state, processing_status, blob_path)
VALUES ('bench', 0, 'approved', 'completed', 'silver/bench.tif');
INSERT INTO dagapp.stac_collections (collection_id, content) VALUES ('bench', '{}');
"""
ADD_ITEMS = """
INSERT INTO dagapp.stac_items (collection_id, item_id, asset_id, version_ordinal, bounds, during, content)
SELECT 'bench', 'item-' || n, 'bench', 0, box(point(x, y), point(x + 1, y + 1)),
    tstzrange(at, at, '[]'), jsonb_build_object('id', 'item-' || n, 'bbox', jsonb_build_array(x, y, x + 1, y + 1),
        'properties', jsonb_build_object('datetime', at, 'eo:cloud_cover', n %% 100), 'assets', '{}'::jsonb)
FROM (SELECT n, -180 + 359 * random() AS x, -90 + 179 * random() AS y,
    timestamptz '2020-01-01 00:00Z' + n * interval '1 hour' AS at FROM generate_series(1, %s) AS n) AS made
"""


async def measure(place: Place, scale: Scale) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="dagmaster-bench-") as name, place.database("w11") as dsn:
        write_raster(Path(name), scale.served_raster_side)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(ADD_ASSET)
            conn.execute(ADD_ITEMS, [scale.catalogue_items])
            conn.execute("ANALYZE dagapp.stac_items")
        with zone(name), started("api", dsn) as api, httpx.Client(base_url=api.address, timeout=60) as client:
            tiles = _times(client, list(tile_paths(scale.served_requests)))
            searches = _times(client, list(search_paths(scale.served_requests)))
    side, count = f"{scale.served_raster_side:,}", f"{scale.catalogue_items:,}"
    return [
        Figure("W11", f"tile of 256 pixels from a COG of {side}², 95 %", tiles.percentile(95), "ms", bar=Bar(TILE_MS)),
        Figure("W11", "the same, median", tiles.median, "ms", tiles.spread),
        Figure("W11", f"items in a box among {count}, 95 %", searches.percentile(95), "ms"),
        Figure("W11", "the same, median", searches.median, "ms", searches.spread, bar=Bar(SEARCH_MS)),
    ]


@contextmanager
def zone(folder: str) -> Iterator[None]:
    """For the server, which inherits the environment."""
    os.environ["DAGMASTER_STORAGE_SILVER"] = folder
    try:
        yield
    finally:
        del os.environ["DAGMASTER_STORAGE_SILVER"]


def write_raster(folder: Path, side: int) -> None:
    """Hills with noise: neither empty nor random, as elevations are."""
    plain = folder / "plain.tif"
    options = {
        "driver": "GTiff",
        "width": side,
        "height": side,
        "count": 1,
        "dtype": "float32",
        "crs": "EPSG:4326",
        "transform": from_bounds(WEST, SOUTH, EAST, NORTH, side, side),
        "tiled": True,
    }
    noise = np.random.default_rng(SEED)
    columns = np.linspace(0, 40, side, dtype="float32")
    with rasterio.open(plain, "w", **options) as dataset:
        for row in range(0, side, STRIP_ROWS):
            rows = np.arange(row, min(side, row + STRIP_ROWS), dtype="float32")[:, np.newaxis] * 40 / side
            hills = 1500 + 900 * np.sin(columns) * np.cos(rows) + noise.normal(0, 3, (len(rows), side))
            dataset.write(hills.astype("float32"), 1, window=Window(0, row, side, len(rows)))
    write_image(resolve_image(plain, PROFILE.resampling), folder / "bench.tif", PROFILE)
    plain.unlink()


def tile_paths(count: int) -> Iterator[str]:
    """Anywhere in the raster, at zooms from an overview to its full resolution."""
    chosen = random.Random(SEED)
    for _ in range(count):
        zoom = chosen.randint(6, ZOOM)
        longitude, latitude = chosen.uniform(WEST + 0.1, EAST - 0.1), chosen.uniform(SOUTH + 0.1, NORTH - 0.1)
        x = int((longitude + 180) / 360 * 2**zoom)
        y = int((1 - np.arcsinh(np.tan(np.radians(latitude))) / np.pi) / 2 * 2**zoom)
        yield f"/tiles/bench/tiles/WebMercatorQuad/{zoom}/{x}/{y}.png?colormap_name=terrain&rescale=500,2500"


def search_paths(count: int) -> Iterator[str]:
    chosen = random.Random(SEED)
    for _ in range(count):
        west, south = chosen.uniform(-180, 170), chosen.uniform(-90, 80)
        yield f"/stac/search?bbox={west},{south},{west + 10},{south + 10}&limit=10"


def _times(client: httpx.Client, paths: list[str]) -> Sample:
    """In milliseconds, without the first request, which loads libraries."""
    seconds = []
    client.get(paths[0]).raise_for_status()
    for path in paths:
        began = perf_counter()
        client.get(path).raise_for_status()
        seconds.append(perf_counter() - began)
    return Sample.of(seconds, scale=1000)
