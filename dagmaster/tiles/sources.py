"""The file of a version, for GDAL."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO, Annotated, Any, Final, assert_never

from fastapi import Depends

from dagmaster.errors import NotFound
from dagmaster.geo.raster.reader import check_signature
from dagmaster.model.asset import DataType
from dagmaster.storage import LocalFile, RemoteObject, WebFile, files, open_storage
from dagmaster.storage.objects import open_file
from dagmaster.storage.references import Location
from dagmaster.web.served_versions import Served
from dagmaster.web.services import ServicesDep

ELSEWHERE: Final = "the data of this version is not in the storage of this server"


@dataclass(frozen=True, slots=True)
class RasterSource:
    """`opener` reads remote files: credentials stay with the storage, GDAL needs none.

    `identity` changes with the content.
    """

    path: str
    identity: str
    opener: Callable[..., IO[bytes]] | None = None


async def find_raster(served: Served, services: ServicesDep) -> RasterSource:
    """The raster of the version in the path and the query."""
    reference = served.blob_path
    if served.asset["data_type"] != DataType.RASTER or reference is None:
        raise NotFound(f"version {served.row['version_ordinal']} of this asset has no raster")
    return open_raster(open_storage(services.settings).locate(reference), served.etag())


def open_raster(location: Location, identity: str) -> RasterSource:
    match location:
        case LocalFile():
            files.stat(location)
            check_signature(location.path)
            return RasterSource(str(location.path), identity)
        case RemoteObject():
            return RasterSource(location.key, identity, partial(_open, location))
        case WebFile():
            raise NotFound(ELSEWHERE)
        case _:
            assert_never(location)


def _open(location: RemoteObject, path: str, mode: str = "rb", **_: Any) -> IO[bytes]:
    """Opens only the object itself: GDAL also looks for sidecar files."""
    if path != location.key or "w" in mode:
        raise FileNotFoundError(path)
    return open_file(location)


def open_location(location: Location) -> IO[bytes]:
    """Open a file that is not a raster, to read parts of it."""
    match location:
        case LocalFile():
            files.stat(location)
            return location.path.open("rb")
        case RemoteObject():
            return open_file(location)
        case WebFile():
            raise NotFound(ELSEWHERE)
        case _:
            assert_never(location)


Raster = Annotated[RasterSource, Depends(find_raster)]
