"""Rows of tables for pages, or the reason why they cannot be shown."""

import csv
import io
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from dagmaster.errors import DagmasterError
from dagmaster.web.api.data import data_query
from dagmaster.web.services import Services
from dagmaster.web.ui.filters import first_line

MAX_ROWS: Final = 200
MAX_BYTES: Final = 1024 * 1024
MAX_FILE_ROWS: Final = 10_000
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
FIRST_ROWS: Final = 20
CELL: Final = 200


@dataclass(frozen=True, slots=True)
class TableRows:
    """Cells are strings; None is NULL. `truncated_by` is the exceeded limit, `problem` the reason for no rows."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | None]] = ()
    truncated_by: str | None = None
    problem: str | None = None


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
