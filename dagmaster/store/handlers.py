"""The contracts of handlers, as their workers registered them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from dagmaster.ids import WorkerId
from dagmaster.model.contracts import Contract, Contracts, by_spelling
from dagmaster.model.retry import RetryPolicy
from dagmaster.store.connect import Connection, Row, encode_rows, escape_like, storable
from dagmaster.store.statements import fetch, run

MAX_DOCUMENTATION: Final = 10_000
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_SCHEMAS_BYTES: Final = 16 * 1024 * 1024


async def stamp_of(conn: Connection) -> tuple[Any, ...]:
    [row] = await fetch(conn, "handlers_stamp")
    return row["handlers"], row["changed_at"]


async def list_contracts(conn: Connection) -> Contracts:
    """By every spelling, without documentation."""
    rows = await fetch(conn, "list_contracts", {"max_schema_bytes": MAX_SCHEMAS_BYTES})
    return by_spelling(map(contract_of, rows))


def contract_of(row: Mapping[str, Any]) -> Contract:
    policy = RetryPolicy.model_validate(retry) if (retry := _loaded(row["retry"])) is not None else None
    params = _loaded(row["params"])
    schema = params if isinstance(params, dict) else None
    is_uniform = bool(row.get("is_uniform"))
    return Contract(row["name"], row["queue"], row["timeout_seconds"], policy, schema, is_uniform=is_uniform)


def _loaded(document: Any) -> Any:
    return orjson.loads(document) if isinstance(document, bytes) else document


async def uniform_handlers(conn: Connection, names: Iterable[str], *, lost_after_seconds: float) -> set[str]:
    """The handlers among these whose registered contract all their current workers share."""
    values = {"names": sorted(set(names)), "lost_after_seconds": lost_after_seconds}
    return {row["name"] for row in await fetch(conn, "uniform_handlers", values)}


async def known_handlers(conn: Connection, names: Iterable[str]) -> set[str]:
    """The handlers among these that any worker has registered."""
    return {row["name"] for row in await fetch(conn, "known_handlers", {"names": sorted(set(names))})}


async def view_handlers(
    conn: Connection,
    *,
    lost_after_seconds: float,
    name: str | None = None,
    text: str | None = None,
    limit: int = 1000,
    offset: int = 0,
) -> Sequence[Row]:
    """By name, with the workers that run them."""
    values = {
        "lost_after_seconds": lost_after_seconds,
        "name": name,
        "pattern": escape_like(text) if text else None,
        "limit": limit,
        "offset": offset,
    }
    return await fetch(conn, "view_handlers", values)


async def register_contracts(conn: Connection, worker_id: WorkerId, contracts: Iterable[Contract]) -> None:
    """The last registration wins."""
    rows = encode_rows([_row(contract) for contract in contracts])
    if rows is not None:
        await run(conn, "register_handlers", {"worker_id": worker_id, "contracts": rows})


def _row(contract: Contract) -> Row:
    schema = orjson.dumps(contract.params) if contract.params is not None else None
    return {
        "name": contract.name,
        "queue": contract.queue,
        "timeout_seconds": contract.timeout_seconds,
        "retry": contract.retry.model_dump(mode="json") if contract.retry is not None else None,
        "params": orjson.Fragment(schema) if schema and len(schema) <= MAX_SCHEMA_BYTES else None,
        "documentation": storable(contract.documentation)[:MAX_DOCUMENTATION],
    }
