"""The floor of W4: a bare script that writes the rows of many three-step jobs, in one process or split over two.

Run as a process it plays the worker: `python -m benchmarks.floor_jobs DSN TASKS BATCH`.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from benchmarks.floor_statements import ADVANCE, ARRIVED, BEGIN, CLAIM, COUNT_EVENTS, END, REPORT, SUBMIT
from dagmaster.snowflakes import new_id
from dagmaster.store.connect import Connection, connect, connect_hot, encode_rows

INPUTS = {"message": "hello"}
OUTPUT = {"echoed_params": INPUTS}
STEPS = 3
QUEUE = "bench"
PAUSE_SECONDS = 0.001

Task = tuple[int, int]  # of which job, which step


async def run_alone(dsn: str, jobs: int, batch: int, *, connections: int) -> float:
    """One process; with several connections each writes its share of the jobs. Seconds."""
    conns = [await connect_hot(dsn, application="floor") for _ in range(connections)]
    try:
        shares = [range(jobs)[number::connections] for number in range(connections)]
        began = perf_counter()
        async with asyncio.TaskGroup() as group:
            for conn, share in zip(conns, shares, strict=True):
                group.create_task(_write_share(conn, f"bench{share.start}", len(share), batch))
        return perf_counter() - began
    finally:
        for conn in conns:
            await conn.close()


async def _write_share(conn: Connection, queue: str, jobs: int, batch: int) -> None:
    for chunk in _chunks([new_id() for _ in range(jobs)], batch):
        await _submit(conn, chunk)
        await _begin(conn, queue, chunk)
        for step in range(STEPS):
            claimed = await _claim(conn, queue, len(chunk))
            async with conn.pipeline(), conn.transaction():
                await _report(conn, [row["task_id"] for row in claimed])
                await _advance(conn, queue, [(row["job_id"], step) for row in claimed])


async def run_split(dsn: str, jobs: int, batch: int) -> float:
    """This process plays the orchestrator, another one the worker; they meet in the tables. Seconds."""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.floor_jobs", dsn, str(jobs * STEPS), str(batch)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    await worker.stdout.readline()
    async with await connect_hot(dsn, application="floor") as conn:
        began = perf_counter()
        await _orchestrate(conn, [new_id() for _ in range(jobs)], batch)
        seconds = perf_counter() - began
    await worker.wait()
    return seconds


async def _orchestrate(conn: Connection, job_ids: Sequence[int], batch: int) -> None:
    waiting: dict[str, Task] = {}
    for chunk in _chunks(job_ids, batch):
        await _submit(conn, chunk)
        await _begin(conn, QUEUE, chunk)
        waiting |= {_task_id(job_id, 0): (job_id, 0) for job_id in chunk}
    while waiting:
        rows = await (await conn.execute(ARRIVED, [list(waiting)])).fetchall()
        ended = [waiting.pop(row["task_id"]) for row in rows]
        await _advance(conn, QUEUE, ended)
        waiting |= {_task_id(job_id, step + 1): (job_id, step + 1) for job_id, step in ended if step + 1 < STEPS}
        if not ended:
            await asyncio.sleep(PAUSE_SECONDS)


async def _work(dsn: str, tasks: int, batch: int) -> None:
    """One transaction reports the last batch and claims the next."""
    async with await connect_hot(dsn, application="floor worker") as conn:
        print("ready", flush=True)
        claimed: list[str] = []
        while tasks:
            async with conn.pipeline(), conn.transaction():
                await _report(conn, claimed)
                cursor = await conn.execute(CLAIM, [QUEUE, batch])
            tasks -= len(claimed)
            claimed = [row["task_id"] for row in await cursor.fetchall()]
            if not claimed:
                await asyncio.sleep(PAUSE_SECONDS)


async def count_events(dsn: str) -> int:
    async with await connect(dsn, application="floor") as conn:
        row = await (await conn.execute(COUNT_EVENTS)).fetchone()
        return row["events"] if row else 0


async def _submit(conn: Connection, job_ids: Sequence[int]) -> None:
    await conn.execute(SUBMIT, [_job_rows(job_ids)])


async def _begin(conn: Connection, queue: str, job_ids: Sequence[int]) -> None:
    await conn.execute(BEGIN, [_job_rows(job_ids), queue])


async def _claim(conn: Connection, queue: str, limit: int) -> list[dict[str, Any]]:
    return await (await conn.execute(CLAIM, [queue, limit])).fetchall()


async def _report(conn: Connection, task_ids: Sequence[str]) -> None:
    rows = [_split(task_id) | {"output": OUTPUT} for task_id in task_ids]
    if rows:
        await conn.execute(REPORT, [encode_rows(rows)])


async def _advance(conn: Connection, queue: str, ended: Sequence[Task]) -> None:
    going_on = [_step_row(job_id, step) for job_id, step in ended if step + 1 < STEPS]
    at_end = [_step_row(job_id, step) | {"result": {"n2": OUTPUT}} for job_id, step in ended if step + 1 == STEPS]
    if going_on:
        await conn.execute(ADVANCE, [encode_rows(going_on), queue])
    if at_end:
        await conn.execute(END, [encode_rows(at_end)])


def _job_rows(job_ids: Sequence[int]) -> str | None:
    return encode_rows([{"job_id": job_id, "input_params": INPUTS} for job_id in job_ids])


def _step_row(job_id: int, step: int) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "node_id": f"n{step}",
        "task_id": _task_id(job_id, step),
        "next_node": f"n{step + 1}",
        "next_task": _task_id(job_id, step + 1),
        "output": OUTPUT,
        "input_params": INPUTS,
    }


def _task_id(job_id: int, step: int) -> str:
    return f"{job_id}_n{step}_0"


def _split(task_id: str) -> dict[str, Any]:
    job_id, node_id, _ = task_id.split("_")
    return {"task_id": task_id, "job_id": int(job_id), "node_id": node_id}


def _chunks(job_ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (job_ids[start : start + size] for start in range(0, len(job_ids), size))


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
