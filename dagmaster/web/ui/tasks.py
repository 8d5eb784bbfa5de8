"""Tasks: waiting and running ones, and the durations of those that ended."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dagmaster.ids import WorkerId
from dagmaster.model.redact import redact
from dagmaster.store.attempts import NEWEST_RESULTS, list_results, list_tasks
from dagmaster.store.workers import list_workers
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.charts import Chart
from dagmaster.web.ui.histogram import draw_histogram
from dagmaster.web.ui.list_filters import PERIOD_NAMES, PERIODS
from dagmaster.web.ui.pages import Page, Shown, paged

router = APIRouter(prefix="/ui", include_in_schema=False)

STATES: Final = ("waiting", "held", "running")
SHOWN_TASKS: Final = 20
SHOWN_RESULTS: Final = 50
SHOWN_WORKERS: Final = 200
DEFAULT_PERIOD: Final = "24h"

Row = Mapping[str, Any]


@router.get("/tasks", dependencies=[READERS])
async def show_tasks(
    page: Shown,
    conn: Conn,
    state: str = "",
    queue: str = "",
    handler: str = "",
    worker: str = "",
    period: str = DEFAULT_PERIOD,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> HTMLResponse:
    period = period if period in PERIODS else DEFAULT_PERIOD
    worker_id = WorkerId(worker) if worker else None
    tasks = await list_tasks(
        conn,
        state=state if state in STATES else None,
        queue=queue or None,
        handler=handler or None,
        worker_id=worker_id,
        limit=SHOWN_TASKS + 1,
        offset=offset,
    )
    since = datetime.now(UTC) - PERIODS[period]
    rows = await list_results(conn, since=since, worker_id=worker_id, handler=handler or None)
    chosen = {"state": state, "queue": queue, "handler": handler, "worker": worker}
    return page.render(
        "tasks.html",
        {
            "tasks": tasks[:SHOWN_TASKS],
            **paged(tasks, SHOWN_TASKS, offset),
            "results": [_result(row) for row in rows[:SHOWN_RESULTS]],
            "result_count": len(rows),
            "is_cut": len(rows) >= NEWEST_RESULTS,
            "failed_count": sum(row["status"] == "failed" for row in rows),
            "histogram": _histogram(rows),
            "states": STATES,
            "period": period,
            "periods": PERIOD_NAMES,
            "is_filtered": any(chosen.values()),
            **chosen,
            **await _choices(page, conn, chosen),
        },
    )


def _result(row: Row) -> Row:
    shown = redact(row)
    memory = shown["peak_memory_bytes"]
    return {**shown, "error": shown["error_message"], "seconds": _seconds(row), "memory_bytes": memory}


def _seconds(row: Row) -> float | None:
    return None if row["seconds"] is None else float(row["seconds"])


def _histogram(rows: Sequence[Row]) -> Chart | None:
    timed = [(row["status"], seconds) for row in rows if (seconds := _seconds(row)) is not None]
    return draw_histogram(
        [seconds for status, seconds in timed if status != "failed"],
        [seconds for status, seconds in timed if status == "failed"],
    )


async def _choices(page: Page, conn: Conn, chosen: Mapping[str, str]) -> dict[str, list[str]]:
    """The options of the filters, including a selected one that is otherwise unknown."""
    workers = await list_workers(conn, limit=SHOWN_WORKERS)
    known: dict[str, set[str]] = {
        "queue": {queue for worker in workers for queue in worker["queues"]},
        "handler": {
            *page.services.registry.names(),
            *(name for worker in workers for name in worker["handlers"] or ()),
        },
        "worker": {worker["worker_id"] for worker in workers},
    }
    return {f"all_{name}s": sorted(values | ({chosen[name]} - {""})) for name, values in known.items()}
