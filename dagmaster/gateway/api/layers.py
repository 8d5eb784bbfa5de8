"""The metadata of layers and the catalogue of published layers: reads from views, changes through the API."""

from typing import Any

from fastapi import APIRouter, Response

from dagmaster.client import asset_calls
from dagmaster.gateway.access import OPERATORS, Caller
from dagmaster.gateway.services import Conn, Limit, ServicesDep
from dagmaster.http.errors import documented
from dagmaster.http.paging import Offset, to_page
from dagmaster.model.asset import DataType
from dagmaster.schemas.common import Page
from dagmaster.schemas.gateway import ExternalPublication
from dagmaster.schemas.layers import CatalogEntryReply, LayerReplacement, LayerReply, NewLayer
from dagmaster.store import gateway as store

router = APIRouter(prefix="/api/admin", tags=["layers"])

METADATA, LAYER = "/layer-metadata", "/layer-metadata/{asset_id}"
FORWARDED: Any = {"responses": documented(404, 409, 502, 504), "dependencies": [OPERATORS]}


@router.get(METADATA, dependencies=[OPERATORS])
async def list_layers(conn: Conn, limit: Limit = 50, offset: Offset = 0) -> Page[LayerReply]:
    """List the metadata of layers in map order."""
    rows = await store.list_layers(conn, limit=limit + 1, offset=offset)
    return to_page([LayerReply.model_validate(row) for row in rows], limit, offset)


@router.get(LAYER, responses=documented(404), dependencies=[OPERATORS])
async def show_layer(asset_id: str, conn: Conn) -> LayerReply:
    """Get the metadata of a layer."""
    return LayerReply.model_validate(await store.get_layer(conn, asset_id))


@router.post(METADATA, status_code=201, **FORWARDED)
async def add_layer(body: NewLayer, caller: Caller, services: ServicesDep) -> LayerReply:
    """Describe the layer of an asset that has no metadata yet."""
    layer = body.model_copy(update={"actor": caller.name})
    return await services.ask(asset_calls.add_layer(layer))


@router.put(LAYER, **FORWARDED)
async def replace_layer(asset_id: str, body: LayerReplacement, caller: Caller, services: ServicesDep) -> LayerReply:
    """Replace the metadata of a layer; 409 unless `version` is the current one."""
    layer = body.model_copy(update={"actor": caller.name})
    return await services.ask(asset_calls.replace_layer(asset_id, layer))


@router.delete(LAYER, status_code=204, **FORWARDED)
async def remove_layer(asset_id: str, caller: Caller, services: ServicesDep) -> Response:
    """Remove the metadata of a layer that is not published."""
    await services.ask(asset_calls.remove_layer(asset_id, caller.name))
    return Response(status_code=204)


@router.post(f"{LAYER}/publish-external", **FORWARDED)
async def publish_layer(asset_id: str, caller: Caller, services: ServicesDep) -> ExternalPublication:
    """Publish the layer of a public asset externally."""
    done = await services.ask(asset_calls.run_command("metadata.publish_external", {"asset_id": asset_id}, caller.name))
    return ExternalPublication(asset_id=asset_id, result=services.operations.value(done.result))


@router.get("/layer-catalog", dependencies=[OPERATORS])
async def list_published_layers(
    conn: Conn, data_type: DataType | None = None, limit: Limit = 50, offset: Offset = 0
) -> Page[CatalogEntryReply]:
    """List the published layers."""
    rows = await store.list_catalog(conn, data_type=data_type, limit=limit + 1, offset=offset)
    return to_page([CatalogEntryReply.model_validate(row) for row in rows], limit, offset)


@router.get("/layer-catalog/{table_name}", responses=documented(404), dependencies=[OPERATORS])
async def show_published_layer(table_name: str, conn: Conn) -> CatalogEntryReply:
    """Get a published layer by its table."""
    return CatalogEntryReply.model_validate(await store.get_catalog_entry(conn, table_name))
