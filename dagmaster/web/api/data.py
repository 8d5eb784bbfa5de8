"""Tables of Python tasks: their lineage, and SQL over them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any, Final

from fastapi import APIRouter

from dagmaster.data.column_lineage import ColumnSource, columns_by_source
from dagmaster.errors import Misconfigured
from dagmaster.http.errors import documented
from dagmaster.schemas.data import Lineage, TableOrigin, TableQuery, TableRows
from dagmaster.store.data_objects import LINEAGE_TABLES, get_object, lineage
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/data", tags=["data"])

# By name: it needs the extra `data`.
DATA_QUERY: Final = "dagmaster.service.data_query"


@router.get("/objects/{table}/lineage", dependencies=[READERS], responses=documented(404))
async def show_lineage(table: str, conn: Conn) -> Lineage:
    """Get a table, by id or global name, with the tables, columns, plans and tasks that it comes from."""
    row = await get_object(conn, table)
    rows = await lineage(conn, row["object_id"], limit=LINEAGE_TABLES + 1)
    traced = columns_by_source(rows)
    tables = [
        TableOrigin.model_validate({**row, "column_sources": _written(traced.get(row["object_id"], {}))})
        for row in rows[:LINEAGE_TABLES]
    ]
    return Lineage(tables=tables, is_truncated=len(rows) > LINEAGE_TABLES)


def _written(sources: Mapping[str, Sequence[ColumnSource]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [asdict(source) for source in origins] for name, origins in sources.items()}


@router.post("/query", dependencies=[READERS], responses=documented(404, 409, 503))
async def query_tables(body: TableQuery, services: ServicesDep) -> TableRows:
    """Run one read-only SELECT on tables, by global name, `"JOB_ID.NAME"` or id."""
    answer = await data_query().query_shared_tables(
        services.pool.connection, services.settings, body.sql, max_rows=body.max_rows
    )
    return TableRows(columns=list(answer.columns), rows=list(answer.rows), truncated_by=answer.truncated_by)


def data_query() -> Any:
    """The module that runs queries. Raises Misconfigured if the extra `data` is not installed."""
    try:
        return import_module(DATA_QUERY)
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"tables need the module {error.name}: install it with `pip install 'dagmaster[data]'`"
        ) from error
