"""The names of these handlers in older workflows."""

from typing import Any

from dagmaster.geo.raster.validate import RasterReport
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.raster.cog import (
    CogParams,
    ProcessParams,
    ValidateParams,
    create_cog,
    fetch,
    process_raster,
    validate_raster,
)
from dagmaster.handlers.raster.stac import (
    CollectionVersionParams,
    ItemOptions,
    ItemParams,
    register,
    stac_register_item,
)
from dagmaster.handlers.registry import handler

handler("create_cog", params=CogParams, isolation="process")(create_cog)
handler("raster_cog_docker", params=ProcessParams, isolation="process")(process_raster)
handler("raster.stac_register", params=ItemParams)(stac_register_item)


@handler("raster_validate", params=ValidateParams, isolation="process")
def raster_validate(ctx: HandlerContext, params: ValidateParams) -> RasterReport:
    """Like raster.validate, for a file anywhere in the storage."""
    return validate_raster(ctx, params.model_copy(update={"path": fetch(ctx, params.path)}))


class CompleteParams(ProcessParams, CollectionVersionParams, ItemOptions):
    pass


@handler("raster_process_complete", params=CompleteParams, isolation="process")
def raster_process_complete(ctx: HandlerContext, params: CompleteParams) -> dict[str, Any]:
    """Like raster.process and raster.stac_register_item in one task."""
    made = process_raster(ctx, ProcessParams(**params.model_dump(include=set(ProcessParams.model_fields))))
    return {**register(ctx, params, params, made), "report": made.report.model_dump(mode="json")}
