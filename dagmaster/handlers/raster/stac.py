"""Describe rasters as STAC items and collections."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from dagmaster.errors import Invalid
from dagmaster.geo.stac import items
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import ItemOptions, Params, VersionParams, invalid_is_permanent
from dagmaster.handlers.raster.cog import CogOutput, ProcessParams, process_raster
from dagmaster.handlers.raster.tiles import TileOutput
from dagmaster.handlers.registry import handler

MAX_ITEMS = 1000


class CollectionParams(Params):
    collection_id: str
    title: str | None = None
    description: str | None = None
    licence: str = "other"
    keywords: list[str] = Field(default_factory=list)


@handler("raster.stac_ensure_collection", params=CollectionParams)
async def stac_ensure_collection(ctx: HandlerContext, params: CollectionParams) -> dict[str, Any]:
    """Create the collection that items are added to. If it exists by the end of the job, it stays as it is."""
    with invalid_is_permanent():
        collection = items.make_collection(**dict(params))
    return {"stac_collection_id": params.collection_id, "stac_collection": collection}


class ItemSource(ItemOptions):
    """`cog` is the output of raster.create_cog."""

    cog: CogOutput


class CollectionVersionParams(VersionParams):
    collection_id: str


class ItemVersionParams(CollectionVersionParams, ItemOptions):
    pass


class ItemParams(ItemVersionParams, ItemSource):
    pass


class CompleteParams(ProcessParams, ItemVersionParams):
    pass


class ItemsParams(CollectionVersionParams):
    """`items`, or `tiles`: the outputs of raster.process_tile_batch; empty tiles have no item."""

    items: Annotated[list[ItemSource], Field(max_length=MAX_ITEMS)] = Field(default_factory=list)
    tiles: Annotated[list[TileOutput], Field(max_length=MAX_ITEMS)] = Field(default_factory=list)
    acquired_at: datetime | None = None
    title: str | None = None

    def sources(self, ctx: HandlerContext) -> list[tuple[str, ItemSource]]:
        """The sources with the ids of their items."""
        numbered = [(source, str(number)) for number, source in enumerate(self.items)]
        of_tiles = [
            (ItemSource(cog=tile.file, acquired_at=self.acquired_at, title=self.title), f"{tile.row}-{tile.column}")
            for tile in self.tiles
            if tile.file is not None
        ]
        return [
            (source.item_id or f"{self.default_item_id(ctx, source.cog.blob_path)}-{suffix}", source)
            for source, suffix in numbered + of_tiles
        ]


def describe_cog_item(
    ctx: HandlerContext, version: CollectionVersionParams, options: ItemOptions, cog: CogOutput, item_id: str
) -> dict[str, Any]:
    moment = items.resolve_datetime(options.acquired_at, cog.taken_at, datetime.now(UTC))
    return items.make_item(
        item_id,
        version.collection_id,
        cog.cog,
        cog.blob_path,
        moment,
        platform=version.platform(ctx),
        title=options.title,
    )


@handler("raster.stac_register", params=ItemParams)  # The name in older workflows.
@handler("raster.stac_register_item", params=ItemParams)
async def stac_register_item(ctx: HandlerContext, params: ItemParams) -> dict[str, Any]:
    """Describe a raster as a STAC item. It enters the catalogue with the asset's version, when the job completes."""
    return register(ctx, params, params.cog)


def register(ctx: HandlerContext, params: ItemVersionParams, cog: CogOutput) -> dict[str, Any]:
    item_id = params.item_id or params.default_item_id(ctx, cog.blob_path)
    with invalid_is_permanent():
        item = describe_cog_item(ctx, params, params, cog, item_id)
    return {
        "stac_item_id": item["id"],
        "stac_collection_id": params.collection_id,
        "stac_item": item,
        "blob_path": cog.blob_path,
        "content_hash": cog.content_hash,
        "bbox": item["bbox"],
    }


@handler("raster_process_complete", params=CompleteParams, isolation="process")
def raster_process_complete(ctx: HandlerContext, params: CompleteParams) -> dict[str, Any]:
    """Like raster.process and raster.stac_register_item in one task."""
    made = process_raster(ctx, ProcessParams(**params.model_dump(include=set(ProcessParams.model_fields))))
    return {**register(ctx, params, made), "report": made.report.model_dump(mode="json")}


@handler("raster.stac_register_items", params=ItemsParams)
async def stac_register_items(ctx: HandlerContext, params: ItemsParams) -> dict[str, Any]:
    """Describe many rasters of one version as STAC items, such as the tiles of a mosaic."""
    with invalid_is_permanent():
        sources = params.sources(ctx)
        ids = [item_id for item_id, _ in sources]
        if not ids:
            raise Invalid("there is nothing to register: pass items, or tiles that are not empty")
        if len(set(ids)) < len(ids):
            raise Invalid("two items have the same item_id")
        items = [describe_cog_item(ctx, params, source, source.cog, item_id) for item_id, source in sources]
    return {"stac_item_ids": ids, "stac_collection_id": params.collection_id, "stac_items": items}
