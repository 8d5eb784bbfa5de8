"""The routes of vectors: TileJSON and the tiles of the version's PMTiles archive, one by one."""

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
from dagmaster.tiles.routes import TileRoute, check_cache
from dagmaster.tiles.sources import open_location
from dagmaster.web.api.tiles import pmtiles_path
from dagmaster.web.served_versions import Served
from dagmaster.web.services import Given

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


async def find_archive(served: Served, services: Given) -> Location:
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
def get_vector_tilejson(asset_id: str, request: Request, archive: Archive) -> VectorTileJson:
    """Get the TileJSON of the vector tiles of a version."""
    with opened_archive(archive) as reader:
        header, metadata = reader.header(), reader.metadata()
    base: str = request.app.state.services.settings.public_url or str(request.base_url)
    query = f"?{request.url.query}" if request.url.query else ""
    return VectorTileJson(
        tiles=[f"{base.rstrip('/')}{router.prefix.format(asset_id=asset_id)}/{{z}}/{{x}}/{{y}}.mvt{query}"],
        minzoom=header["min_zoom"],
        maxzoom=header["max_zoom"],
        bounds=tuple(header[f"{side}_e7"] / 1e7 for side in ("min_lon", "min_lat", "max_lon", "max_lat")),
        vector_layers=metadata.get("vector_layers", []),
    )


@router.get("/{z}/{x}/{y}.mvt", response_class=Response, responses={200: {"content": {MVT: {}}}, 204: {}})
def get_vector_tile(z: Zoom, x: Index, y: Index, archive: Archive) -> Response:
    """Get a vector tile; 204 where there are no features."""
    if max(x, y) >= 2**z:
        return Response(status_code=204)
    with opened_archive(archive) as reader:
        tile = reader.get(z, x, y)
        compression = reader.header()["tile_compression"]
    if tile is None:
        return Response(status_code=204)
    headers = {"Content-Encoding": "gzip"} if compression == Compression.GZIP else {}
    return Response(tile, media_type=MVT, headers=headers)
