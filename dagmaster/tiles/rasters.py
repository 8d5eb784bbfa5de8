"""The routes of rasters: tiles, TileJSON, points, statistics, preview images and legends."""

from typing import Any, Final

import rasterio
from fastapi import APIRouter, Depends, Request
from morecantile import tms
from morecantile.defaults import TileMatrixSets
from rio_tiler.models import ImageData
from titiler.core.dependencies import DefaultDependency
from titiler.core.factory import TilerFactory
from titiler.core.resources.enums import ImageType
from titiler.core.utils import render_image

from dagmaster.errors import Invalid
from dagmaster.geo.raster.reader import GDAL_OPTIONS
from dagmaster.tiles.legend import Legend, make_legend
from dagmaster.tiles.parameters import (
    IMAGE_TYPES,
    Bands,
    HistogramOptions,
    ImageSize,
    Rendering,
    Rescale,
    Sampling,
    StatisticsOptions,
    check_tile_size,
    colour_map,
    no_algorithm,
    parse_rescale,
)
from dagmaster.tiles.reader import CogReader
from dagmaster.tiles.routes import TileRoute, check_cache, public_url
from dagmaster.tiles.sources import Raster, find_raster

GRID: Final = "WebMercatorQuad"


def gdal_options() -> dict[str, Any]:
    return dict(GDAL_OPTIONS)


def render(
    image: ImageData,
    *,
    output_format: ImageType | None = None,
    accepted: ImageType | None = None,
    rescale: Any = None,
    colormap: Any = None,
    **options: Any,
) -> tuple[bytes, str]:
    """The type in the path, else one that the caller accepts, else one that suits the data."""
    kind = output_format or accepted
    if kind is not None and kind not in IMAGE_TYPES:
        raise Invalid(f"images are {', '.join(known.value for known in IMAGE_TYPES)}; not {kind.value}")
    kind = ImageType.jpeg if kind is ImageType.jpg else kind
    content, media_type = render_image(
        image,
        output_format=kind,
        rescale=rescale or image.dataset_statistics,
        colormap=colormap or None,
        # Without one, rasterio warns; rio-tiler silences that for the whole process, not for its own thread.
        transform=image.transform,
        **options,
    )
    return content, media_type


class RasterFactory(TilerFactory):
    """TiTiler's routes without those that take a geometry, list tilings or show a page of another host."""

    def register_routes(self) -> None:
        self.info()
        self.statistics()
        self.tile()
        self.tilejson()
        self.point()
        self.preview()
        self.router.routes[:] = [route for route in self.router.routes if route.methods == {"GET"}]

    def url_for(self, request: Request, name: str, **path_params: Any) -> str:
        path = self.router.url_path_for(name, asset_id=request.path_params["asset_id"], **path_params)
        return f"{public_url(request)}{path}"


def make_router() -> APIRouter:
    router = APIRouter(
        prefix="/tiles/{asset_id}",
        route_class=TileRoute,
        dependencies=[Depends(check_cache), Depends(check_tile_size)],
    )
    RasterFactory(
        router=router,
        name="rasters",
        reader=CogReader,
        path_dependency=find_raster,
        layer_dependency=Bands,
        dataset_dependency=Sampling,
        tile_dependency=DefaultDependency,
        stats_dependency=StatisticsOptions,
        histogram_dependency=HistogramOptions,
        img_preview_dependency=ImageSize,
        process_dependency=no_algorithm,
        colormap_dependency=colour_map,
        render_dependency=Rendering,
        render_func=render,
        environment_dependency=gdal_options,
        supported_tms=TileMatrixSets({GRID: tms.get(GRID)}),
    )
    return router


router: Final = make_router()


@router.get("/legend", operation_id="getLegend")
def get_legend(
    raster: Raster, bands: Bands = Depends(), rescale: Rescale = None, colours: Any = Depends(colour_map)
) -> Legend:
    """Get the values that the colours of the tiles stand for, with the same parameters."""
    with rasterio.Env(**GDAL_OPTIONS), CogReader(raster) as opened:
        return make_legend(opened, opened.shown_bands(bands.indexes), parse_rescale(rescale), colours)
