"""The routes of vectors: TileJSON and the tiles of the version's PMTiles archive."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response
from pmtiles.reader import Reader
from pmtiles.tile import Compression
from pydantic import BaseModel

from dagmaster.errors import Unavailable
from dagmaster.storage import open_storage
from dagmaster.storage.references import Location
from dagmaster.tiles import tables
from dagmaster.tiles.routes import TileRoute, check_cache, public_url
from dagmaster.tiles.sources import open_location
from dagmaster.web.api.tiles import pmtiles_path
from dagmaster.web.served_versions import Served
from dagmaster.web.services import ServicesDep

MAX_ZOOM: Final = 24
MVT: Final = "application/vnd.mapbox-vector-tile"
MAX_PART_BYTES: Final = 16 * 1024 * 1024

Index = Annotated[int, Path(ge=0, lt=2**MAX_ZOOM)]
Zoom = Annotated[int, Path(ge=0, le=MAX_ZOOM)]

router: Final = APIRouter(
    prefix="/tiles/{asset_id}/vector", route_class=TileRoute, dependencies=[Depends(check_cache)], tags=["vectors"]
)


class VectorTileJson(BaseModel):
    """TileJSON 3.0."""

    tilejson: str = "3.0.0"
    tiles: list[str]
    minzoom: int
    maxzoom: int
    bounds: tuple[float, float, float, float]
    vector_layers: list[dict[str, Any]]


async def find_archive(served: Served, services: ServicesDep) -> Location:
    return open_storage(services.settings).locate(pmtiles_path(served))


Archive = Annotated[Location, Depends(find_archive)]


@contextmanager
def opened_archive(location: Location) -> Iterator[Any]:
    with open_location(location) as file:

        def get_bytes(offset: int, length: int) -> bytes:
            if length > MAX_PART_BYTES:
                raise Unavailable("the vector tiles of this version are damaged")
            file.seek(offset)
            return file.read(length)

        yield Reader(get_bytes)


@router.get("/tilejson.json")
def get_vector_tilejson(asset_id: str, request: Request, archive: Archive, served: Served) -> VectorTileJson:
    """Get the TileJSON of the vector tiles of a version."""
    with opened_archive(archive) as reader:
        header, metadata = reader.header(), reader.metadata()
    query = f"?{request.url.query}" if request.url.query else ""
    return VectorTileJson(
        tiles=[f"{public_url(request)}{router.prefix.format(asset_id=asset_id)}/{{z}}/{{x}}/{{y}}.mvt{query}"],
        minzoom=header["min_zoom"],
        maxzoom=header["max_zoom"] if served.row["table_name"] is None else tables.MAX_ZOOM,
        bounds=tuple(header[f"{side}_e7"] / 1e7 for side in ("min_lon", "min_lat", "max_lon", "max_lat")),
        vector_layers=metadata.get("vector_layers", []),
    )


@router.get("/{z}/{x}/{y}.mvt", response_class=Response, responses={200: {"content": {MVT: {}}}, 204: {}})
async def get_vector_tile(
    z: Zoom, x: Index, y: Index, archive: Archive, served: Served, services: ServicesDep
) -> Response:
    """Get a vector tile; 204 where there are no features.

    Zooms beyond those of the archive come from the PostGIS table of the version, if it has one.
    """
    if max(x, y) >= 2**z:
        return Response(status_code=204)
    table = served.row["table_name"]
    if table is not None and z > (await asyncio.to_thread(read_header, archive))["max_zoom"]:
        if z > tables.MAX_ZOOM:
            return Response(status_code=204)
        async with services.pool.connection() as conn:
            content = await tables.read_tile(conn, table, z, x, y)
        return Response(content, media_type=MVT) if content else Response(status_code=204)
    return await asyncio.to_thread(_archived_tile, archive, z, x, y)


def _archived_tile(archive: Location, z: int, x: int, y: int) -> Response:
    with opened_archive(archive) as reader:
        tile = reader.get(z, x, y)
        compression = reader.header()["tile_compression"]
    if tile is None:
        return Response(status_code=204)
    headers = {"Content-Encoding": "gzip"} if compression == Compression.GZIP else {}
    return Response(tile, media_type=MVT, headers=headers)


def read_header(archive: Location) -> dict[str, Any]:
    with opened_archive(archive) as reader:
        header: dict[str, Any] = reader.header()
    return header
