"""Tiles of versions: rasters drawn on demand, vectors as ranges of their PMTiles file."""

import asyncio
from importlib import import_module
from typing import Any

from fastapi import APIRouter, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dagmaster.errors import Misconfigured
from dagmaster.web.access import EVERYBODY

router = APIRouter(tags=["tiles"])

# By name: what draws rasters takes a second to load, and only who serves tiles needs it.
RASTER_ROUTES = "dagmaster.tiles.rasters"


class Forwarded(Response):
    """What another application responds."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def load_raster_routes() -> Any:
    try:
        return import_module(RASTER_ROUTES).router
    except ModuleNotFoundError as error:
        raise Misconfigured(
            "tiles of rasters need TiTiler: install it with `pip install 'dagmaster[serve]'`"
        ) from error


@router.get("/tiles/{asset_id}/{path:path}", dependencies=[EVERYBODY], include_in_schema=False)
async def serve_raster(asset_id: str, path: str) -> Response:
    """Tiles, TileJSON, points, statistics, preview images and legends: see `dagmaster.tiles.rasters`."""
    return Forwarded(await asyncio.to_thread(load_raster_routes))
