"""The location of an asset's data, and its tiles: rasters rendered on demand, vectors as ranges of a PMTiles file."""

import asyncio
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dagmaster.errors import Misconfigured, NotFound
from dagmaster.http.errors import documented
from dagmaster.model.asset import DataType
from dagmaster.schemas.assets import ServiceReply
from dagmaster.storage import open_storage
from dagmaster.storage.source import Source
from dagmaster.web.access import EVERYBODY
from dagmaster.web.served_versions import VARY, Served, ServedVersion
from dagmaster.web.services import ServicesDep

locations = APIRouter(tags=["assets"])
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
# A single range; a list of them is answered with the whole file, which is always allowed.
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


async def resolve_service(served: Served) -> ServiceReply:
    """Find the data of a version. The public sees only approved versions of public assets."""
    return ServiceReply.model_validate(
        {
            **served.row,
            "data_type": served.asset["data_type"],
            "clearance_state": served.asset["clearance_state"],
            "is_preview": served.is_preview,
            "blob_path": served.blob_path,
        }
    )


for path, name in (
    ("/tiles/{asset_id}", "tiles"),
    ("/assets/{asset_id}/service", "asset_service"),
    ("/api/v1/assets/{asset_id}/service", "get_asset_service"),
):
    locations.add_api_route(path, resolve_service, name=name, responses=documented(404), dependencies=[EVERYBODY])


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
    "/tiles/{asset_id}/data.pmtiles", dependencies=[EVERYBODY], response_class=Response, responses=PMTILES_RESPONSES
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


def range_response(source: Source, size: int, request_headers: Mapping[str, str], headers: dict[str, str]) -> Response:
    """`headers` has the ETag of the file. If the caller's `If-Range` differs, the response is the whole file."""
    headers = {**headers, "Accept-Ranges": "bytes"}
    is_current = request_headers.get("if-range", headers["ETag"]) == headers["ETag"]
    interval = _parse_range(request_headers.get("range", ""), size) if is_current else None
    start, end = interval or (0, size)
    if interval is not None and start >= end:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    headers["Content-Length"] = str(end - start)
    if interval is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return StreamingResponse(source.read_range(start, end), 200 if interval is None else 206, headers)


def _parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Start and exclusive end, an empty range if the file ends before it begins; None for the whole file."""
    match = _RANGE.fullmatch(header.strip())
    first, last = match.groups() if match else ("", "")
    if not first:
        return (max(0, size - int(last)), size) if last else None
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size


@router.get("/tiles/{asset_id}/{path:path}", dependencies=[EVERYBODY], include_in_schema=False)
async def serve_tile(asset_id: str, path: str) -> Response:
    """Tiles, TileJSON, points, statistics, preview images and legends: see `dagmaster.tiles`."""
    return Forwarded(await asyncio.to_thread(load_tile_routes))
