"""A key submitted repeatedly and concurrently creates one job."""

import asyncio
import json

import pytest
from processes import ORCHESTRATOR, WORKER, Stage, new_job
from promise import assert_promise_kept
from shapes import CHAIN

from dagmaster.store import submission
from dagmaster.store.connect import connect

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

KEY = "nightly-2026-01-31"


def test_twenty_concurrent_submissions_with_one_key_create_one_job(stage: Stage) -> None:
    stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER)

    async def submit_together() -> list[submission.Submitted]:
        connections = [await connect(stage.dsn, application="acceptance") for _ in range(20)]
        job = new_job(CHAIN, {"n": 1}, idempotency_key=KEY)
        submissions = await asyncio.gather(
            *(submission.submit(conn, job, threshold_seconds=60) for conn in connections)
        )
        for conn in connections:
            await conn.close()
        return submissions

    submissions = asyncio.run(submit_together())
    assert len({submitted.job_id for submitted in submissions}) == 1
    assert sum(submitted.is_new for submitted in submissions) == 1
    stage.until_ended()
    assert stage.database.value("SELECT count(*) FROM dagapp.dag_jobs") == 1
    assert_promise_kept(stage.dsn)


def test_three_processes_submitting_one_key_create_one_job(stage: Stage) -> None:
    file = stage.write_file(CHAIN)
    arguments = ["submit", file, "--idempotency-key", KEY, "--json", "-i"]
    processes = [stage.start(*arguments, "n=1") for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    submissions = [json.loads(process.out.read_text()) for process in processes]
    assert len({submitted["job_id"] for submitted in submissions}) == 1
    assert sorted(submitted["is_new"] for submitted in submissions) == [False, False, True]
    other = stage.start(*arguments, "n=2")
    assert other.wait() == 2
    assert "use a new key" in other.log.read_text()
    stage.launch(ORCHESTRATOR, WORKER)
    stage.until_ended()
    assert stage.database.value("SELECT count(*) FROM dagapp.dag_jobs") == 1
    assert_promise_kept(stage.dsn)
