"""A worker gets only tasks that it has handlers for."""

from typing import Any

import psycopg
from fleet import chain, fleet, handlers, single

from dagmaster.store.connect import opened
from dagmaster.store.queues import unserved_tasks


async def answer(ctx: Any) -> dict[str, int]:
    return {"answer": 42}


async def test_handlers_can_borrow_connections_to_the_workers_database(dsn: str) -> None:
    async def asks(ctx: Any) -> dict[str, Any]:
        async with ctx.pool.connection() as conn:
            row = await (await conn.execute("SELECT current_database(), %s::int", [7])).fetchone()
        return {"row": list(row)}

    def asks_in_a_thread(ctx: Any) -> dict[str, Any]:
        with ctx.pool.connection() as conn:
            return {"row": list(conn.execute("SELECT current_database(), %s::int", [7]).fetchone())}

    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker(known=handlers(asks=asks, thread=asks_in_a_thread))
        jobs = [await running.submit(single(name)) for name in ("asks", "thread")]
        ended = await running.completed(*jobs)
    database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    assert [job["result_data"]["work"] for job in ended] == [{"row": [database, 7]}] * 2


async def test_a_task_waits_for_a_worker_that_has_its_handler(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single("special"))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        await running.completed(await running.submit(single("echo")))  # The worker was active and skipped it.
        async with opened(dsn, application="test") as conn:
            [waiting] = await unserved_tasks(conn, job_id)
        assert waiting == {"queue": "q", "handler": "special", "tasks": 1}
        await running.worker(known=handlers(special=answer))
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"answer": 42}


async def test_a_local_worker_leaves_tasks_without_handler_to_others(dsn: str) -> None:
    async with fleet(dsn) as running:
        owner = await running.orchestrator()
        await running.worker(owner=owner)
        able = await running.worker(known=handlers(special=answer))
        job_id = await running.submit(chain(3, "special"))
        await running.completed(job_id)
        ran = await running.rows("SELECT DISTINCT worker_id FROM dagapp.dag_task_results")
        assert [row["worker_id"] for row in ran] == [able.id]
