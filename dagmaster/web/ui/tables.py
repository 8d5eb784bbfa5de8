"""Tables of Python tasks: the list, and the page of a table with its rows, columns and lineage."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from dagmaster.data.column_lineage import ColumnSource, columns_by_source
from dagmaster.ids import NodeId
from dagmaster.model.data_object import DataObjectState, Scope
from dagmaster.model.redact import redact
from dagmaster.store.data_objects import LINEAGE_TABLES, get_object, lineage, list_objects, query_name
from dagmaster.web.access import READERS, Admitted
from dagmaster.web.services import Conn, ServicesDep
from dagmaster.web.ui.filters import plural, pretty
from dagmaster.web.ui.pages import Page, Shown, paged
from dagmaster.web.ui.sql import first_rows

router = APIRouter(prefix="/ui", include_in_schema=False)

PAGE_SIZE: Final = 50

Row = Mapping[str, Any]
TableId = Annotated[int, Path(gt=0, lt=2**63)]


@router.get("/tables", dependencies=[READERS])
async def show_tables(
    page: Shown,
    conn: Conn,
    text: Annotated[str, Query(max_length=128)] = "",
    scope: str = "",
    job: Annotated[str, Query(pattern=r"^\d{0,18}$")] = "",
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> HTMLResponse:
    text, scope = text.strip(), scope if scope in set(Scope) else ""
    rows = await list_objects(
        conn,
        scope=Scope(scope) if scope else None,
        job_id=int(job) if job else None,
        text=text or None,
        limit=PAGE_SIZE + 1,
        offset=offset,
    )
    return page.render(
        "tables.html",
        {
            "tables": [_view(row) for row in rows[:PAGE_SIZE]],
            **paged(rows, PAGE_SIZE, offset),
            "text": text,
            "scope": scope,
            "job": job,
            "scopes": list(Scope),
        },
    )


@router.get("/tables/{table_id}", dependencies=[READERS])
async def show_table(table_id: TableId, page: Shown, conn: Conn) -> HTMLResponse:
    return page.render("table.html", {"table": await _get(conn, table_id)})


@router.get("/tables/{table_id}/panel", dependencies=[READERS])
async def show_panel(table_id: TableId, page: Shown, conn: Conn) -> HTMLResponse:
    rows = await lineage(conn, table_id)
    table = None if rows[0]["state"] is None else await _get(conn, table_id)
    return page.render("table_panel.html", {"table": table, "table_id": str(table_id)})


@router.get("/tables/{table_id}/rows", dependencies=[READERS])
async def show_rows(table_id: TableId, request: Request, services: ServicesDep, caller: Admitted) -> HTMLResponse:
    """Holds no database connection while the engine runs the query."""
    async with services.pool.connection() as conn:
        row = await get_object(conn, str(table_id))
    return Page(request, services, caller).render("table_rows.html", {"answer": await first_rows(services, row)})


@router.get("/tables/{table_id}/graph", dependencies=[READERS])
async def show_graph(table_id: TableId, conn: Conn) -> dict[str, Any]:
    """The table and its sources, in the format of the graph component."""
    await get_object(conn, str(table_id))  # Raises UnknownTable.
    rows = await lineage(conn, table_id)
    drawn = {row["object_id"] for row in rows}
    return {
        "nodes": [_node(row) for row in rows],
        "edges": [
            {"source": str(source), "target": str(row["object_id"]), "branch": None}
            for row in rows
            for source in row["inputs"]
            if source in drawn
        ],
    }


def _node(row: Row) -> dict[str, Any]:
    if row["state"] is None:
        return {"node_id": str(row["object_id"]), "type": "dropped", "note": "dropped"}
    rows = "not complete" if row["row_count"] is None else plural(row["row_count"], "row")
    task = _node_of(row)
    return {
        "node_id": str(row["object_id"]),
        "label": row["name"] or str(row["object_id"]),
        "type": "table",
        "note": f"{task} · {rows}" if task else rows,
        "description": f"{rows}, by task {row['task_id']}" if row["task_id"] else rows,
    }


async def _get(conn: Conn, table_id: int) -> Row:
    """Raises UnknownTable."""
    row = await get_object(conn, str(table_id))
    rows = await lineage(conn, table_id, limit=LINEAGE_TABLES)
    return _view({**rows[0], **row}, columns_by_source(rows).get(table_id, {}), {row["object_id"]: row for row in rows})


def _view(
    row: Row, sources: Mapping[str, Sequence[ColumnSource]] | None = None, tables: Mapping[int, Row] | None = None
) -> Row:
    """A table with the task that created it, and the `sql` and `plan` that computed it."""

    def origins(name: str) -> list[Row]:
        """Source columns; `label` names the table and the column."""
        return [
            {
                "label": f"{_name_of((tables or {}).get(source.object_id), source.object_id)}.{source.column}",
                "table_id": source.object_id,
            }
            for source in (sources or {}).get(name, ())
        ]

    node_id = _node_of(row)
    return {
        "workflow_id": None,
        **row,
        "table_id": row["object_id"],
        "title": row["name"] or row["object_id"],
        "node_id": node_id,
        "node_path": f"/ui/jobs/{row['job_id']}/nodes/{quote(node_id, safe='')}" if node_id else None,
        "is_ready": row["state"] == DataObjectState.READY,
        "columns": [{**column, "origins": origins(column["name"])} for column in row["columns"] or ()],
        "plan": pretty(redact(row["plan"]["root"])) if row["plan"] else None,
        "query_name": query_name(dict(row)),
    }


def _name_of(row: Row | None, table_id: int) -> str:
    return (row["name"] if row else None) or str(table_id)


def _node_of(row: Row) -> NodeId | None:
    """The ids of tasks are `job_node_attempt`."""
    if not row["task_id"] or not row["job_id"]:
        return None
    return NodeId(row["task_id"].removeprefix(f"{row['job_id']}_").rpartition("_")[0])
