"""Tiles of versions: rasters rendered on demand, vectors as ranges of their PMTiles file."""

import asyncio
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dagmaster.errors import Misconfigured, NotFound
from dagmaster.model.asset import DataType
from dagmaster.storage import open_storage
from dagmaster.web.access import EVERYBODY
from dagmaster.web.errors import documented
from dagmaster.web.ranges import range_response
from dagmaster.web.served_versions import VARY, Served, ServedVersion
from dagmaster.web.services import ServicesDep

router = APIRouter(tags=["tiles"])

# Imported by name: it takes a second to load, and only servers of tiles need it.
TILE_ROUTES: Final = "dagmaster.tiles.router"
PMTILES: Final = "application/vnd.pmtiles"
PMTILES_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {PMTILES: {}}, "description": "The file."},
    206: {"content": {PMTILES: {}}, "description": "A range of the file."},
    416: {"description": "The file ends before the range begins."},
    **documented(404),
}


class Forwarded(Response):
    """The response of another application."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def load_tile_routes() -> Any:
    try:
        return import_module(TILE_ROUTES).router
    except ModuleNotFoundError as error:
        raise Misconfigured("tiles need TiTiler: install it with `pip install 'dagmaster[serve]'`") from error


def pmtiles_path(served: ServedVersion) -> str:
    """The PMTiles file next to the data."""
    blob_path = served.row["blob_path"]
    if served.asset["data_type"] != DataType.VECTOR or blob_path is None:
        raise NotFound(f"version {served.row['version_ordinal']} of this asset has no vector tiles")
    return str(PurePosixPath(blob_path).with_suffix(".pmtiles"))


@router.get(
    "/tiles/{asset_id}/data.pmtiles",
    dependencies=[EVERYBODY],
    response_class=Response,
    responses=PMTILES_RESPONSES,
)
async def get_pmtiles(request: Request, served: Served, services: ServicesDep) -> Response:
    """Read the vector tiles of a version, as a PMTiles archive, whole or in ranges."""
    storage = open_storage(services.settings)
    source = await storage.source(storage.locate(pmtiles_path(served)))
    headers = {
        "Content-Type": PMTILES,
        "ETag": served.etag(source.identity),
        "Cache-Control": served.cache_control,
        "Vary": VARY,
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return range_response(source, source.size_bytes or 0, request.headers, headers)


@router.get("/tiles/{asset_id}/{path:path}", dependencies=[EVERYBODY], include_in_schema=False)
async def serve_tile(asset_id: str, path: str) -> Response:
    """Tiles, TileJSON, points, statistics, preview images and legends: see `dagmaster.tiles`."""
    return Forwarded(await asyncio.to_thread(load_tile_routes))
