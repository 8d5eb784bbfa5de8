"""The metadata of an asset's layer: add, replace and remove it, each recorded in the audit log."""

from collections.abc import Mapping
from typing import Any

from dagmaster.assets.external_layers import is_expected
from dagmaster.assets.review import check_live
from dagmaster.errors import Conflict
from dagmaster.model.asset import Asset, DataType
from dagmaster.store import layers as layer_store
from dagmaster.store.assets import lock_asset
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection
from dagmaster.store.layers import LayerRow


async def add_layer(
    conn: Connection, asset_id: str, data_type: DataType | None, fields: Mapping[str, Any], *, actor: str | None
) -> LayerRow:
    """Raises UnknownAsset, and Conflict for another data type or if there is metadata already."""
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        check_live(asset)
        _check_data_type(asset, data_type)
        if not await layer_store.add_layer(conn, asset_id, asset.data_type, fields):
            raise Conflict(f"asset {asset_id!r} has layer metadata already; replace it, with the version that you read")
        await _note(conn, "add", asset_id, actor)
    return await layer_store.get_layer(conn, asset_id)


async def replace_layer(
    conn: Connection,
    asset_id: str,
    version: int,
    data_type: DataType | None,
    fields: Mapping[str, Any],
    *,
    actor: str | None,
) -> LayerRow:
    """Raises Conflict if it was replaced since this version was read."""
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        check_live(asset)
        layer = await layer_store.get_layer(conn, asset_id)
        _check_data_type(asset, data_type)
        if not await layer_store.replace_layer(conn, asset_id, version, fields):
            raise Conflict(
                f"the metadata is at version {layer['version']}, not {version}: it has changed; "
                "read it again and repeat the change"
            )
        await _note(conn, "replace", asset_id, actor)
    return await layer_store.get_layer(conn, asset_id)


async def remove_layer(conn: Connection, asset_id: str, *, actor: str | None) -> None:
    """Raises Conflict while the layer is published, because its projections would stay."""
    async with conn.transaction():
        await lock_asset(conn, asset_id)
        layer = await layer_store.get_layer(conn, asset_id)
        if layer["published_at"] is not None or is_expected(layer):
            raise Conflict(f"the layer of asset {asset_id!r} is published; unpublish it first")
        await layer_store.remove_layer(conn, asset_id)
        await _note(conn, "remove", asset_id, actor)


def _check_data_type(asset: Asset, data_type: DataType | None) -> None:
    if data_type is not None and data_type is not asset.data_type:
        raise Conflict(f"asset {asset.asset_id!r} is a {asset.data_type}, not a {data_type}")


async def _note(conn: Connection, verb: str, asset_id: str, actor: str | None) -> None:
    await note_command(conn, {"command": f"metadata.{verb}", "actor": actor, "asset_id": asset_id})
