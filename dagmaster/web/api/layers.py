"""The metadata of layers, and the catalogue of published layers."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from dagmaster.assets import layer_metadata
from dagmaster.errors import UnknownLayer
from dagmaster.http.errors import documented
from dagmaster.schemas.common import Page
from dagmaster.schemas.layers import CatalogEntryReply, LayerReplacement, LayerReply, NewLayer
from dagmaster.store import layers as layer_store
from dagmaster.store.layer_catalog import get_catalog_entry, list_catalog
from dagmaster.store.layers import LayerRow
from dagmaster.web.access import ASSET_VIEWERS, OPERATORS, Admitted
from dagmaster.web.assets import Actor
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/domain", tags=["layers"])

METADATA, LAYER = "/metadata/", "/metadata/{asset_id}"
IsPublished = Annotated[bool | None, Query(description="Only published layers, or only unpublished ones.")]


@router.get(METADATA, dependencies=[ASSET_VIEWERS])
async def list_layers(
    caller: Admitted, conn: Conn, is_published: IsPublished = None, limit: Limit = 50, offset: Offset = 0
) -> Page[LayerReply]:
    """List the metadata of layers in map order."""
    rows = await layer_store.list_layers(
        conn, platform_id=caller.platform_id, is_published=is_published, limit=limit + 1, offset=offset
    )
    return to_page([_reply(row) for row in rows], limit, offset)


@router.post(METADATA, status_code=201, responses=documented(404, 409), dependencies=[OPERATORS])
async def add_layer(body: NewLayer, caller: Admitted, conn: Conn) -> LayerReply:
    """Describe the layer of an asset that has no metadata yet."""
    fields = body.model_dump(exclude={"asset_id", "data_type", "actor"})
    actor = body.actor or caller.name or None
    return _reply(await layer_metadata.add_layer(conn, body.asset_id, body.data_type, fields, actor=actor))


@router.get(LAYER, responses=documented(404), dependencies=[ASSET_VIEWERS])
async def get_layer(asset_id: str, caller: Admitted, conn: Conn) -> LayerReply:
    """Get the metadata of a layer."""
    layer = await layer_store.get_layer(conn, asset_id)
    if caller.platform_id not in (None, layer["platform_id"]):
        raise UnknownLayer(f"asset {asset_id[:80]!r} has no layer metadata")
    return _reply(layer)


@router.put(LAYER, responses=documented(404, 409), dependencies=[OPERATORS])
async def replace_layer(asset_id: str, body: LayerReplacement, caller: Admitted, conn: Conn) -> LayerReply:
    """Replace the metadata of a layer; 409 unless `version` is the current one. Publish again to show the change."""
    fields = body.model_dump(exclude={"version", "data_type", "actor"})
    actor = body.actor or caller.name or None
    layer = await layer_metadata.replace_layer(conn, asset_id, body.version, body.data_type, fields, actor=actor)
    return _reply(layer)


@router.delete(LAYER, status_code=204, responses=documented(404, 409), dependencies=[OPERATORS])
async def remove_layer(asset_id: str, caller: Admitted, conn: Conn, actor: Actor = None) -> Response:
    """Remove the metadata of a layer that is not published."""
    await layer_metadata.remove_layer(conn, asset_id, actor=actor or caller.name or None)
    return Response(status_code=204)


@router.get("/catalog/", dependencies=[ASSET_VIEWERS])
async def list_published_layers(
    caller: Admitted, conn: Conn, limit: Limit = 50, offset: Offset = 0
) -> Page[CatalogEntryReply]:
    """List the published layers that have a table."""
    rows = await list_catalog(conn, platform_id=caller.platform_id, limit=limit + 1, offset=offset)
    return to_page([CatalogEntryReply.model_validate(row) for row in rows], limit, offset)


@router.get("/catalog/{table_name}", responses=documented(404), dependencies=[ASSET_VIEWERS])
async def get_published_layer(table_name: str, caller: Admitted, conn: Conn) -> CatalogEntryReply:
    """Get a published layer by its table."""
    row = await get_catalog_entry(conn, table_name, platform_id=caller.platform_id)
    return CatalogEntryReply.model_validate(row)


def _reply(layer: LayerRow) -> LayerReply:
    published_at = layer["published_at"]
    is_stale = published_at is not None and layer["updated_at"] > published_at
    row: dict[str, Any] = {**layer, "has_unpublished_changes": is_stale}
    return LayerReply.model_validate(row)
