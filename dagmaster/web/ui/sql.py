"""SQL on stored tables: one read-only SELECT at a time."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from dagmaster.store.data_objects import list_queryable
from dagmaster.web.access import READERS, Admitted
from dagmaster.web.services import Conn, ServicesDep
from dagmaster.web.ui.pages import Page, Shown
from dagmaster.web.ui.table_rows import MAX_FILE_ROWS, MAX_ROWS, query, query_as_csv

router = APIRouter(prefix="/ui/tables", include_in_schema=False)

# The query is part of the URL.
MAX_SQL = 8_000

Sql = Annotated[str, Query(max_length=MAX_SQL)]


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
