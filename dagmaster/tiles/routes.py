"""The common parts of tile routes: caches, rejected parameters, and translated errors of TiTiler."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from rasterio.errors import RasterioError
from rio_tiler.errors import PointOutsideBounds, RioTilerError, TileOutsideBounds

from dagmaster.errors import DagmasterError, Invalid, NotFound, Unavailable
from dagmaster.web.served_versions import VARY, Served, ServedVersion

# Their parsers read local files that a definition may name.
REFUSED_PARAMETERS: Final = frozenset({"coord_crs", "dst_crs", "crs"})


class NotModified(Exception):
    """The caller already has the current response."""


async def check_cache(request: Request, served: Served) -> None:
    """Runs after the access check and before anything is drawn."""
    request.state.served = served
    if etag_of(request, served) in request.headers.get("if-none-match", "").split(", "):
        raise NotModified


def etag_of(request: Request, served: ServedVersion) -> str:
    return served.etag(
        request.url.path, str(sorted(request.query_params.multi_items())), request.headers.get("accept", "")
    )


class TileRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        respond = super().get_route_handler()
        parameters = query_names(self.dependant) - REFUSED_PARAMETERS

        async def respond_as_route(request: Request) -> Response:
            if unknown := sorted(set(request.query_params) - parameters):
                raise Invalid(f"unknown parameter {unknown[0][:40]!r}; known are {', '.join(sorted(parameters))}")
            try:
                response = await respond(request)
            except NotModified:
                response = Response(status_code=304)
            except (RioTilerError, RasterioError) as error:
                raise translated(error) from error
            served: ServedVersion = request.state.served
            response.headers["Cache-Control"] = served.cache_control
            response.headers["ETag"] = etag_of(request, served)
            response.headers["Vary"] = VARY
            return response

        return respond_as_route


def public_url(request: Request) -> str:
    """The URL of this server as the caller reaches it, through proxies."""
    url: str = request.app.state.services.settings.public_url or str(request.base_url)
    return url.rstrip("/")


def query_names(dependant: Dependant) -> set[str]:
    """The parameters that a route and its dependencies accept."""
    names = {field.alias for field in dependant.query_params}
    return names.union(*map(query_names, dependant.dependencies))


def translated(error: Exception) -> DagmasterError:
    """GDAL's messages name local files, so they are not repeated."""
    match error:
        case TileOutsideBounds():
            return NotFound("the tile is outside of the data")
        case PointOutsideBounds():
            return NotFound("the point is outside of the data")
        case RioTilerError():
            return Invalid(str(error))
        case _:
            return Unavailable("the data of this version cannot be read at the moment")
