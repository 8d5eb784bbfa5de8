"""Values too large for memory stay in the database, and a job that is too large fails alone.

The limits are scaled down from gigabytes to kilobytes.
"""

import asyncio
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from fleet import OrchestratorRole, chain, child, fan, fleet, graph, rows, single, task, wait_until
from psycopg.types.json import Json

from dagmaster.engine.change_set import Rules
from dagmaster.engine.values import StoredValue, size_of
from dagmaster.model.workflow import Branch, ConditionalNode, FanInNode, FanOutNode
from dagmaster.orchestrator import chores, pending_batch, strikes
from dagmaster.store.batch import Batch, commit
from dagmaster.store.connect import Connection, opened
from dagmaster.store.doctor import examine
from dagmaster.store.instances import Instance, register_orchestrator
from dagmaster.store.orchestrators import stalled_orchestrators
from dagmaster.store.statements import fetch
from dagmaster.store.submission import NewJob

SMALL = Rules(inline_bytes=1_000, max_change_set_bytes=20_000, max_fan_in_bytes=200_000, max_result_bytes=200_000)
LARGE = 5_000


def weigh(ctx: Any) -> dict[str, Any]:
    return {"size": len(str(ctx.params["text"]))}


def swell(ctx: Any) -> dict[str, Any]:
    return {"text": "x" * int(ctx.params.get("size", LARGE)), "list": list(range(5)), "x": ctx.params.get("x")}


def held_values(owner: OrchestratorRole) -> list[bytes]:
    """The outputs that the owner keeps in memory."""
    jobs = [job.state for job_id in owner.instance.jobs if (job := owner.instance.jobs.get(job_id)) is not None]
    return [node.output for job in jobs for node in job.nodes.values() if isinstance(node.output, bytes)]


async def test_a_large_output_is_loaded_only_for_expressions_and_not_cached(dsn: str):
    definition = graph(
        {
            "make": task("swell", "route"),
            "route": ConditionalNode(
                branches=(
                    Branch(name="long", when="{{ nodes.make.output.text | length }} > 1000", next=("look",)),
                    Branch(name="short", next=("END",)),
                ),
            ),
            "look": task("weigh", "hold", params={"text": "{{ nodes.make.output.text }}"}),
            "hold": task("sleep", "END", params={"seconds": 60}),
        },
        start="make",
    )
    async with fleet(dsn, swell=swell, weigh=weigh) as running:
        owner = await running.orchestrator(rules=SMALL)
        await running.worker()
        job_id = await running.submit(definition)
        query = "SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE node_id = 'hold' AND status = 'running'"
        await running.until(query)
        output = owner.instance.jobs.get(job_id).state.nodes["make"].output
        assert isinstance(output, StoredValue) and output.size > LARGE
        assert max(map(len, held_values(owner))) < SMALL.inline_bytes
        await running.cancel(job_id)
        await running.ended(job_id)
        nodes = await running.nodes(job_id)
        assert nodes["look"]["output"] == {"size": LARGE}
        assert len(nodes["make"]["output"]["text"]) == LARGE


async def test_a_fan_out_over_a_large_list_keeps_its_items_across_a_takeover(dsn: str):
    definition = graph(
        {
            "make": task("swell", "spread", params={"size": LARGE}),
            "spread": FanOutNode(
                source="{{ nodes.make.output.list }}", task=child("swell"), max_parallel=2, next=("gather",)
            ),
            "gather": FanInNode(aggregation="collect", next=("END",)),
        },
        start="make",
    )
    async with fleet(dsn, swell=swell) as running:
        first = await running.orchestrator(rules=SMALL)
        job_id = await running.submit(definition)
        worker = await running.worker(concurrency=1)
        await running.until(
            "SELECT count(*) > 0 AS ok FROM dagapp.dag_node_states WHERE node_id = 'spread__1' AND status = 'completed'"
        )
        await first.kill()
        await running.orchestrator(rules=SMALL, orphan_threshold_seconds=0.5)
        [row] = await running.completed(job_id)
        await worker.stop()
    gathered = row["result_data"]["gather"]
    assert [result["x"] for result in gathered["results"]] == [0, 1, 2, 3, 4]
    assert {len(result["text"]) for result in gathered["results"]} == {LARGE}
    assert len(row["result_data"]["make"]["text"]) == LARGE


async def test_a_fan_in_over_the_size_limit_fails_its_job(dsn: str):
    async with fleet(dsn, swell=swell) as running:
        owner = await running.orchestrator(rules=SMALL)
        await running.worker()
        items = list(range(8))
        job_id = await running.submit(
            fan(handler="swell", params={"x": "{{ item }}", "size": 30_000}), {"items": items}
        )
        neighbour = await running.submit(chain(3))
        await running.completed(neighbour)
        [row] = await running.ended(job_id)
        assert row["status"] == "failed"
        assert "a fan-in may gather 195.3 KiB (max_fan_in_bytes)" in row["error_message"]
        assert "let each task return a reference to its data" in row["error_message"]
        assert owner.instance.stats.errors == 0
        children = [node for name, node in (await running.nodes(job_id)).items() if name.startswith("spread__")]
        assert {len(node["output"]["text"]) for node in children} == {30_000}


async def test_outputs_that_arrived_without_an_orchestrator_are_processed_in_parts(
    dsn: str, monkeypatch: pytest.MonkeyPatch
):
    sizes = []

    async def measured(conn: Any, batch: Batch) -> None:
        sizes.append(sum(changes.bytes for changes, _ in batch.change_sets))
        await commit(conn, batch)

    async with fleet(dsn, swell=swell) as running:
        first = await running.orchestrator(rules=SMALL)
        definition = single("swell", params={"size": 900})
        jobs = await running.submit_all([NewJob(definition, {}) for _ in range(60)])
        await running.until("SELECT count(*) = 60 AS ok FROM dagapp.dag_tasks_waiting")
        await first.kill()
        await running.worker()
        await running.until("SELECT count(*) >= 60 AS ok FROM dagapp.dag_mailbox WHERE kind = 'completed'")
        monkeypatch.setattr(pending_batch, "commit", measured)
        await running.orchestrator(rules=SMALL, orphan_threshold_seconds=0.5)
        await running.completed(*jobs)
    assert sum(sizes) > 60 * 900
    assert max(sizes) < SMALL.max_change_set_bytes + 2_000


async def test_large_outputs_are_processed_in_parts_after_small_mail(dsn: str, monkeypatch: pytest.MonkeyPatch):
    batches: list[dict[int, int]] = []

    async def measured(conn: Any, batch: Batch) -> None:
        batches.append(
            {
                changes.job.job_id: sum(size_of(result.output) for result in changes.results.values())
                for changes, _ in batch.change_sets
            }
        )
        await commit(conn, batch)

    async with fleet(dsn, swell=swell) as running:
        first = await running.orchestrator(rules=SMALL)
        large = await running.submit(fan(handler="swell", params={"x": "{{ item }}"}), {"items": list(range(30))})
        await running.until("SELECT count(*) = 30 AS ok FROM dagapp.dag_tasks_waiting")
        await first.kill()
        await running.worker()
        await running.until("SELECT count(*) >= 30 AS ok FROM dagapp.dag_mailbox WHERE kind = 'completed'")
        neighbour = await running.submit(chain(3))
        monkeypatch.setattr(pending_batch, "commit", measured)
        await running.orchestrator(rules=SMALL, orphan_threshold_seconds=0.5)
        await running.completed(large, neighbour)
    written = [batch for batch in batches if batch.get(large)]
    assert sum(batch[large] for batch in written) > 30 * LARGE
    assert max(batch[large] for batch in written) < SMALL.max_change_set_bytes
    assert not any(neighbour in batch for batch in written)


async def test_a_task_whose_result_is_in_the_mailbox_does_not_time_out(dsn: str):
    """When the second owner starts, all tasks are overdue in their queues and it reads only some of the reports."""
    impatient = replace(SMALL, dispatch_timeout_seconds=0.01)
    async with fleet(dsn, swell=swell) as running:
        first = await running.orchestrator(rules=SMALL)
        job_id = await running.submit(fan(handler="swell", params={"x": "{{ item }}"}), {"items": list(range(30))})
        await running.until("SELECT count(*) = 30 AS ok FROM dagapp.dag_tasks_waiting")
        await first.kill()
        await running.worker()
        await running.until("SELECT count(*) >= 30 AS ok FROM dagapp.dag_mailbox WHERE kind = 'completed'")
        await running.orchestrator(rules=impatient, orphan_threshold_seconds=0.5)
        await running.completed(job_id)


async def test_a_large_output_is_stored_once_with_its_node(dsn: str):
    size = 10_000  # Larger than a notification's payload.
    nodes = {"large": task("swell", "small", params={"size": size}), "small": task("swell", "END", params={"size": 10})}
    definition = graph(nodes, start="large")
    async with fleet(dsn, swell=swell) as running:
        await running.orchestrator(rules=SMALL)
        await running.worker()
        job_id = await running.submit(definition)
        await running.completed(job_id)
        outputs = {node_id: node["output"] for node_id, node in (await running.nodes(job_id)).items()}
        results = await rows(dsn, "SELECT node_id, output FROM dagapp.dag_task_results")
        async with opened(dsn, application="test") as conn:
            large = {"task_id": f"{job_id}_large_0", "job_id": job_id, "kind": "completed", "error": None}
            [same] = await fetch(conn, "find_report", {**large, "output": Json(outputs["large"])})
            [other] = await fetch(conn, "find_report", {**large, "output": Json({"text": "y"})})
    assert {row["node_id"]: row["output"] for row in results} == {"large": None, "small": outputs["small"]}
    assert len(outputs["large"]["text"]) == size
    assert same["is_same"] and not other["is_same"]


async def test_large_submissions_without_an_orchestrator_are_started_in_parts(dsn: str):
    definition = graph(
        {"look": task("weigh", "END", params={"text": "{{ inputs.text }}"})}, start="look", inputs={"text": "string"}
    )
    async with fleet(dsn, weigh=weigh) as running:
        jobs = await running.submit_all([NewJob(definition, {"text": "y" * 15_000}) for _ in range(20)])
        neighbour = await running.submit(chain(3))
        owner = await running.orchestrator(rules=SMALL)
        await running.worker()
        await running.completed(neighbour, *jobs)
        assert owner.instance.stats.errors == 0
        assert (await running.nodes(jobs[7]))["look"]["output"] == {"size": 15_000}


async def test_a_result_over_the_size_limit_omits_the_largest_outputs(dsn: str):
    definition = graph(
        {"a": task("swell", "b", params={"size": 150_000}), "b": task("swell", "END", params={"size": 100_000})},
        start="a",
    )
    async with fleet(dsn, swell=swell) as running:
        await running.orchestrator(rules=SMALL)
        await running.worker()
        job_id = await running.submit(definition)
        [row] = await running.completed(job_id)
        assert len(row["result_data"]["b"]["text"]) == 100_000
        assert "a" not in row["result_data"]
        assert row["result_data"]["_provenance"]["left_out"] == ["a"]
        [warning] = await running.events(job_id, "job_warning")
        assert warning["event_data"]["left_out"] == ["a"]
        assert len((await running.nodes(job_id))["a"]["output"]["text"]) == 150_000


ERRORS = {
    "limit": psycopg.errors.ProgramLimitExceeded("total size of jsonb object elements exceeds the maximum"),
    "libpq": psycopg.OperationalError("sending query failed: cannot allocate memory for output buffer"),
    "memory": MemoryError(),
}


def refuse(monkeypatch: pytest.MonkeyPatch, error: BaseException, workflow_id: str) -> None:
    """As if each batch with this job were too large for the database."""

    async def choosy(conn: Any, batch: Batch) -> None:
        for changes, _ in batch.change_sets:
            if changes.job.graph.workflow.workflow_id == workflow_id and not changes.is_over:
                raise error
        await commit(conn, batch)

    monkeypatch.setattr(pending_batch, "commit", choosy)


@pytest.mark.parametrize("kind", ERRORS)
async def test_a_job_that_is_too_large_to_be_written_fails_alone(dsn: str, monkeypatch: pytest.MonkeyPatch, kind: str):
    refuse(monkeypatch, ERRORS[kind], "single")
    async with fleet(dsn) as running:
        large = await running.submit(single())
        others = [await running.submit(chain(2)) for _ in range(3)]
        await running.orchestrator()
        await running.worker()
        await running.completed(*others)
        [row] = await running.ended(large)
        assert row["status"] == "failed"
        assert row["error_message"].startswith("the job is too large to be written: ")
        assert "orchestrator_error" in [event["event_type"] for event in await running.events(large)]


async def test_a_job_that_is_too_large_to_be_written_can_be_cancelled(dsn: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strikes, "MAX_STRIKES", 10**9)
    refuse(monkeypatch, ERRORS["limit"], "single")
    async with fleet(dsn) as running:
        owner = await running.orchestrator()
        job_id = await running.submit(single())
        await wait_until(lambda: owner.instance.stats.errors > 0)
        await running.cancel(job_id)
        [row] = await running.ended(job_id)
        assert row["status"] == "cancelled"


async def test_an_orchestrator_without_progress_logs_it_and_releases_its_jobs(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with fleet(dsn) as running:
        first = await running.orchestrator(orphan_threshold_seconds=1.5)

        async def fail_the_first(conn: Any, batch: Batch) -> None:
            if batch.owner_id == first.id:
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            await commit(conn, batch)

        is_over = asyncio.Event()

        async def register_when_it_is_over(conn: Connection, me: Instance) -> None:
            await is_over.wait()
            await register_orchestrator(conn, me)

        monkeypatch.setattr(pending_batch, "commit", fail_the_first)
        # With no jobs left it completes a cycle and would return with the next heartbeat.
        monkeypatch.setattr(chores, "register_orchestrator", register_when_it_is_over)
        job_id = await running.submit(single())
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_orchestrators WHERE status = 'stalled'")
        async with opened(dsn, application="test") as conn:
            [finding] = [
                candidate
                for candidate in await examine(conn, recheck_seconds=0)
                if candidate.name == "stalled_orchestrators"
            ]
            [stalled] = await stalled_orchestrators(conn, progress_seconds=30, orphan_seconds=30)
        assert finding.examples[0]["orchestrator_id"] == stalled["orchestrator_id"] == first.id
        await wait_until(lambda: "has made no progress" in caplog.text)
        await running.orchestrator(orphan_threshold_seconds=1.5)
        await running.worker()
        await running.completed(job_id)
        is_over.set()
