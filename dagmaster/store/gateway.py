"""The gateway's reads for partners and reviewers, from its views. Nothing here writes."""

from dataclasses import asdict, dataclass

from dagmaster.errors import UnknownAsset, UnknownLayer, UnknownRequest, UnknownVersion
from dagmaster.model.access import Role
from dagmaster.model.asset import AssetFilter
from dagmaster.store.connect import Connection, Row, encode_json, required
from dagmaster.store.keys import fingerprint_of
from dagmaster.store.statements import fetch, fetch_one


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """`platform_id` is the platform that a partner or a reviewer acts for; None means all."""

    name: str
    role: Role
    platform_id: str | None = None


async def reads_tables(conn: Connection) -> bool:
    """Whether the role can do more than read the views, which it must not. Raises if it cannot read them."""
    [row] = await fetch(conn, "gateway_access", {})
    return bool(row["reads_tables"])


async def find_key_holder(conn: Connection, text: str) -> KeyHolder | None:
    """None if the text is not a key, or the key is unknown, revoked or expired."""
    fingerprint = fingerprint_of(text)
    if fingerprint is None:
        return None
    key_id, key_hash = fingerprint
    row = await fetch_one(conn, "gateway_key", {"key_id": key_id, "key_hash": key_hash})
    return KeyHolder(row["name"], Role(row["role"]), row["platform_id"]) if row else None


async def get_request(conn: Connection, request_id: str, platform_id: str | None) -> Row:
    """Raises UnknownRequest, also for a request of another platform."""
    row = await fetch_one(conn, "gateway_request", {"request_id": request_id, "platform_id": platform_id})
    return required(row, UnknownRequest(f"there is no request {request_id[:128]!r}"))


async def list_platforms(conn: Connection, platform_id: str | None) -> list[Row]:
    return await fetch(conn, "gateway_platforms", {"platform_id": platform_id})


async def list_assets(
    conn: Connection, where: AssetFilter, *, asset_id: str | None = None, limit: int, offset: int = 0
) -> list[Row]:
    values = {
        **asdict(where),
        "asset_id": asset_id,
        "refs": encode_json(dict(where.refs)) if where.refs else None,
        "limit": limit,
        "offset": offset,
    }
    return await fetch(conn, "gateway_assets", values)


async def get_asset(conn: Connection, asset_id: str, platform_id: str | None) -> Row:
    """Raises UnknownAsset, also for an asset of another platform."""
    rows = await list_assets(conn, AssetFilter(platform_id), asset_id=asset_id, limit=1)
    return required(next(iter(rows), None), UnknownAsset(f"there is no asset {asset_id[:64]!r}"))


async def list_versions(conn: Connection, asset_id: str, *, limit: int, offset: int = 0) -> list[Row]:
    values = {"asset_id": asset_id, "ordinal": None, "limit": limit, "offset": offset}
    return await fetch(conn, "gateway_versions", values)


async def get_version(conn: Connection, asset_id: str, ordinal: int) -> Row:
    values = {"asset_id": asset_id, "ordinal": ordinal, "limit": 1, "offset": 0}
    row = await fetch_one(conn, "gateway_versions", values)
    return required(row, UnknownVersion(f"asset {asset_id!r} has no version {ordinal}"))


async def list_layers(conn: Connection, *, limit: int, offset: int) -> list[Row]:
    return await fetch(conn, "gateway_layers", {"asset_id": None, "limit": limit, "offset": offset})


async def get_layer(conn: Connection, asset_id: str) -> Row:
    row = await fetch_one(conn, "gateway_layers", {"asset_id": asset_id, "limit": 1, "offset": 0})
    return required(row, UnknownLayer(f"asset {asset_id[:64]!r} has no layer metadata"))


async def list_catalog(conn: Connection, *, data_type: str | None, limit: int, offset: int) -> list[Row]:
    values = {"table_name": None, "data_type": data_type, "limit": limit, "offset": offset}
    return await fetch(conn, "gateway_catalog", values)


async def get_catalog_entry(conn: Connection, table_name: str) -> Row:
    values = {"table_name": table_name, "data_type": None, "limit": 1, "offset": 0}
    row = await fetch_one(conn, "gateway_catalog", values)
    return required(row, UnknownLayer(f"no published layer has the table {table_name[:256]!r}"))
