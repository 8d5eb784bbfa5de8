"""Tiles served by a dedicated process: the same routes and keys."""

import asyncio
from pathlib import Path

import httpx
import pytest
from asset_rows import add_asset
from processes import Stage
from rasters import DEM
from test_api_process import first_line

from dagmaster.model.access import Role
from dagmaster.store.connect import opened
from dagmaster.store.keys import new_key

pytestmark = pytest.mark.acceptance


async def prepare(dsn: str) -> str:
    """An internal raster, and a key that may read it."""
    await add_asset(dsn, "dem", data_type="raster", blob_path=f"silver/{DEM.name}")
    async with opened(dsn, application="test") as conn:
        key = await new_key(conn, name="viewer", role=Role.VIEWER, created_by="test")
    return key.text


def test_tiles_are_served_by_a_dedicated_process(stage: Stage, tmp_path: Path) -> None:
    silver = tmp_path / "silver"
    silver.mkdir()
    (silver / DEM.name).write_bytes(DEM.read_bytes())
    key = asyncio.run(prepare(stage.dsn))
    process = stage.start("tiles", "--port", "0", storage_silver=silver)
    url = first_line(process, "serving").split()[-1]
    with httpx.Client(base_url=url, timeout=60) as client:
        tile = "/tiles/dem/tiles/WebMercatorQuad/9/105/193.png"
        assert client.get(tile).status_code == 404
        drawn = client.get(tile, headers={"Authorization": f"Bearer {key}"})
        assert (drawn.status_code, drawn.headers["content-type"]) == (200, "image/png")
        assert client.get("/readyz").status_code == 200
        assert client.get("/api/v1/jobs").status_code == 404
        assert "/tiles/{asset_id}/legend" in client.get("/openapi.json").json()["paths"]
    process.terminate()
    assert process.wait() == 0
