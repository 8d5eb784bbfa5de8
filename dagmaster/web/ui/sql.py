"""Rows of stored tables for pages: the first of a table, or those of one read-only SELECT."""

import csv
import io
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from dagmaster.errors import DagmasterError
from dagmaster.store.data_objects import list_queryable
from dagmaster.web.access import READERS, Admitted
from dagmaster.web.api.data import data_query
from dagmaster.web.services import Conn, Services, ServicesDep
from dagmaster.web.ui.filters import first_line
from dagmaster.web.ui.pages import Page, Shown

router = APIRouter(prefix="/ui/tables", include_in_schema=False)

MAX_SQL: Final = 8_000  # The query is part of the URL.
MAX_ROWS: Final = 200
MAX_BYTES: Final = 1024 * 1024
MAX_FILE_ROWS: Final = 10_000
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
FIRST_ROWS: Final = 20
CELL: Final = 200

Sql = Annotated[str, Query(max_length=MAX_SQL)]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Cells are strings; None is NULL. `truncated_by` is the exceeded limit, `problem` the reason for no rows."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | None]] = ()
    truncated_by: str | None = None
    problem: str | None = None


@router.get("/sql", dependencies=[READERS])
async def show_sql(page: Shown, conn: Conn, sql: Sql = "") -> HTMLResponse:
    return page.render(
        "sql.html",
        {"sql": sql.strip(), "names": await list_queryable(conn), "max_sql": MAX_SQL, "max_rows": MAX_ROWS},
    )


@router.get("/sql/answer", dependencies=[READERS])
async def show_answer(request: Request, services: ServicesDep, caller: Admitted, sql: Sql) -> HTMLResponse:
    """Holds no database connection while the engine runs the query."""
    page, answer = Page(request, services, caller), await query(services, sql)
    return page.render("sql_answer.html", {"answer": answer, "sql": sql, "max_file_rows": MAX_FILE_ROWS})


@router.get("/sql/rows.csv", dependencies=[READERS])
async def export_answer(services: ServicesDep, sql: Sql) -> Response:
    text, is_truncated = await query_as_csv(services, sql)
    name = f"first-{MAX_FILE_ROWS}-rows.csv" if is_truncated else "rows.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


async def first_rows(services: Services, row: Mapping[str, Any]) -> TableRows:
    names = [column["name"] for column in row["columns"] or ()]
    answer = await _rows_or_problem(
        lambda: data_query().first_rows(
            services.pool.connection,
            services.settings,
            row["object_id"],
            row["location"],
            max_rows=FIRST_ROWS,
            max_bytes=MAX_BYTES,
        )
    )
    return answer if answer.columns or answer.problem else TableRows(names)


async def query(services: Services, sql: str) -> TableRows:
    return await _rows_or_problem(lambda: _run_query(services, sql, MAX_ROWS, MAX_BYTES))


async def query_as_csv(services: Services, sql: str) -> tuple[str, bool]:
    """The rows as CSV, and whether some were left out."""
    answer = await _run_query(services, sql, MAX_FILE_ROWS, MAX_FILE_BYTES)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(answer.columns)
    writer.writerows([_text(value) for value in row.values()] for row in answer.rows)
    return text.getvalue(), answer.truncated_by is not None


def _run_query(services: Services, sql: str, max_rows: int, max_bytes: int) -> Awaitable[Any]:
    answer: Awaitable[Any] = data_query().query_shared_tables(
        services.pool.connection, services.settings, sql, max_rows=max_rows, max_bytes=max_bytes
    )
    return answer


async def _rows_or_problem(query: Any) -> TableRows:
    """The error of a failed query is shown in place of rows, so that users can correct it."""
    try:
        answer = await query()
    except DagmasterError as error:
        return TableRows(problem=str(error))
    rows = [
        [None if value is None else first_line(_text(value), CELL) for value in row.values()] for row in answer.rows
    ]
    return TableRows(answer.columns, rows, answer.truncated_by)


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case list() | dict():
            return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        case _:
            return str(value)
