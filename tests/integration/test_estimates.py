import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fleet import WorkerRole, chain, child, fan, graph, rows, single, task, wait_until
from job_owner import owner
from web import Web, web

from dagmaster.engine.messages import Load, TaskFailed
from dagmaster.explain.estimate import Basis, Usual
from dagmaster.model.graph import Graph
from dagmaster.model.progress import percent_done
from dagmaster.model.workflow import Branch, ConditionalNode, FanInNode, FanOutNode
from dagmaster.store.connect import opened
from dagmaster.store.estimates import Histories, load_snapshot, usual_times

PROMPT = 0.2
TWO_AT_ONCE = """
    WITH times AS (SELECT now() AS at, make_interval(secs => %s) AS run)
    UPDATE dagapp.dag_node_states
    SET started_at = at + run * (right(node_id, 1)::int / 2), completed_at = at + run * (right(node_id, 1)::int / 2 + 1)
    FROM times WHERE node_id LIKE 'spread\\_\\_%%'
"""


class Gate:
    """A handler that takes a moment and then waits while the gate is closed."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.calls = 0

    async def let_through(self, calls: int) -> None:
        """Release only the tasks so far, once all have been called: a task runs in the database a little earlier."""
        await wait_until(lambda: self.calls == calls)
        self.open.set()
        self.open = asyncio.Event()

    async def work(self, ctx: Any) -> dict[str, Any]:
        self.calls += 1
        is_open = self.open
        await asyncio.sleep(PROMPT)
        await is_open.wait()
        return {}


@asynccontextmanager
async def gated(dsn: str, *graphs: Graph) -> AsyncIterator[tuple[Web, Gate]]:
    gate = Gate()
    async with web(dsn, *graphs, runs=True, functions={"work": gate.work}) as api:
        try:
            yield api, gate
        finally:
            gate.open.set()


async def begun(api: Web, workflow: Graph, inputs: dict[str, Any] | None = None, running: int = 1) -> dict[str, Any]:
    """The job's progress once this many of its tasks run."""
    job_id = await api.fleet.submit(workflow, inputs)
    query = "SELECT count(*) = %s AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND status = 'running'"
    await api.fleet.until(query, lambda: [running, job_id])
    return dict(await api.get(f"/api/v1/jobs/{job_id}/progress"))


def seconds_until(timestamp: str) -> float:
    return (datetime.fromisoformat(timestamp) - datetime.now(UTC)).total_seconds()


async def test_a_jobs_end_is_estimated_from_earlier_runs(dsn: str) -> None:
    three = chain(3, "work")
    async with gated(dsn, three) as (api, gate):
        for _ in range(2):
            await api.fleet.run(three)
        gate.open.clear()
        progress = await begun(api, three)
        assert progress["estimate_basis"] == "history"
        assert progress["overall_percent"] == 20.0
        async with opened(dsn, application="test") as conn:
            times = await usual_times(conn, three)
        total = sum((times[node].run_seconds or 0) + times[node].wait_seconds for node in ("n0", "n1", "n2"))
        assert seconds_until(progress["estimated_completion"]) < 2 * total
        started_at = await api.fleet.value("SELECT max(started_at) FROM dagapp.dag_node_states WHERE node_id = 'n0'")
        usual = timedelta(seconds=total - times["n0"].wait_seconds)
        assert datetime.fromisoformat(progress["estimated_completion"]) > started_at + usual / 2
        gate.open.set()
        await api.fleet.completed(int(progress["job_id"]))
        over = await api.get(f"/api/v1/jobs/{progress['job_id']}/progress")
        assert (over["overall_percent"], over["estimated_completion"], over["estimate_basis"]) == (100.0, None, None)


async def test_without_history_the_estimate_uses_the_current_run(dsn: str) -> None:
    two = chain(2, "work")
    async with gated(dsn, two) as (api, gate):
        gate.open.clear()
        progress = await begun(api, two)
        assert (progress["estimated_completion"], progress["estimate_basis"]) == (None, None), "no task has ended yet"
        await gate.let_through(1)
        job_id = progress["job_id"]
        query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'n1'"
        await api.fleet.until(query, lambda: [int(job_id)])
        progress = await api.get(f"/api/v1/jobs/{job_id}/progress")
        assert progress["estimate_basis"] == "so_far"
        assert seconds_until(progress["estimated_completion"]) < 60


async def test_tolerated_failures_count_as_done(dsn: str) -> None:
    nodes: dict[str, Any] = {
        "a": task("fail", "b", allow_failure=True),
        "b": FanOutNode(source="{{ [1] }}", task=child("fail"), allow_failure=True, next=("c",)),
        "c": FanInNode(next=("d",)),
        "d": task("work", "END"),
    }
    async with owner(dsn) as job_owner:
        await job_owner.submit(graph(nodes, start="a"))
        await job_owner.advance(Load())
        for node in ("a", "b__0"):
            await job_owner.advance(TaskFailed(node, f"{job_owner.job_id}_{node}_0", "w", datetime.now(UTC), "no luck"))
        async with opened(dsn, application="test") as conn:
            snapshot = await load_snapshot(conn, job_owner.job_id)
    assert percent_done(snapshot.job) == round(100 * 4 / 6, 1)


async def test_the_percentage_of_a_fan_out_never_falls_while_children_are_created(dsn: str) -> None:
    workflow = fan("collect", handler="work", max_parallel=2)
    async with gated(dsn, workflow) as (api, gate):
        gate.open.clear()
        progress = await begun(api, workflow, {"items": list(range(6))}, running=2)
        path = f"/api/v1/jobs/{progress['job_id']}/progress"
        assert progress["overall_percent"] == 25.0, "of four nodes only START has ended, though the children are there"
        assert (progress["nodes"]["total"], progress["nodes"]["completed"]) == (10, 1)
        seen = [progress["overall_percent"]]

        async def percent() -> float:
            seen.append((await api.get(path))["overall_percent"])
            await asyncio.sleep(0.02)
            return seen[-1]

        await gate.let_through(2)
        while await percent() == 25.0:
            pass
        assert seen[-1] < 100.0
        gate.open.set()
        while await percent() < 100.0:
            pass
        assert seen == sorted(seen)


async def test_children_are_estimated_by_their_parallelism(dsn: str) -> None:
    workflow = fan("collect", handler="work", max_parallel=2)
    async with gated(dsn, workflow) as (api, gate):
        await api.fleet.run(workflow, {"items": [1, 2, 3, 4]})
        await rows(dsn, TWO_AT_ONCE, PROMPT)  # A busy machine may run them one by one.
        async with opened(dsn, application="test") as conn:
            spread = (await usual_times(conn, workflow))["spread"]
        assert (spread.items, spread.parallel) == (4, 2.0)
        assert spread.run_seconds == pytest.approx(PROMPT)
        gate.open.clear()
        job_id = (await begun(api, workflow, {"items": list(range(100))}, running=2))["job_id"]
        before = datetime.now(UTC)
        progress = await api.get(f"/api/v1/jobs/{job_id}/progress")
        after = datetime.now(UTC)
        assert progress["estimate_basis"] == "history"
        usual = timedelta(seconds=50 * spread.run_seconds)
        assert before + 0.6 * usual < datetime.fromisoformat(progress["estimated_completion"]) < after + 1.4 * usual


async def test_a_paused_job_has_no_estimated_end(dsn: str) -> None:
    two = chain(2, "work")
    async with gated(dsn, two) as (api, gate):
        await api.fleet.run(two)
        gate.open.clear()
        progress = await begun(api, two)
        assert progress["estimate_basis"] == "history"
        await api.post(f"/api/v1/jobs/{progress['job_id']}/pause")
        paused = await api.get(f"/api/v1/jobs/{progress['job_id']}/progress")
        assert (paused["estimated_completion"], paused["estimate_basis"]) == (None, None)


async def test_a_failed_job_keeps_its_percentage(dsn: str) -> None:
    def stumble(ctx: Any) -> None:
        raise ValueError("no luck")

    nodes = {"a": task("echo", "b"), "b": task("stumble", "c"), "c": task("echo", "END")}
    broken = graph(nodes, "broken", start="a")
    async with web(dsn, broken, runs=True, functions={"stumble": stumble}) as api:
        job = await api.fleet.run(broken)
        progress = await api.get(f"/api/v1/jobs/{job['job_id']}/progress")
        assert (progress["job_status"], progress["overall_percent"]) == ("failed", 40.0)
        assert progress["nodes"]["skipped"] == 2, "they are counted as what they are"


async def test_histories_are_cached_with_an_expiry_and_a_size_limit(dsn: str) -> None:
    async with owner(dsn) as job_owner, opened(dsn, application="test") as conn:
        hashes = []
        histories = Histories(keep=2, seconds=600)
        for name in ("a", "b", "c"):
            await job_owner.submit(single(workflow_id=name))
            await job_owner.advance()
            await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'running' WHERE job_id = %s", job_owner.job_id)
            snapshot = await load_snapshot(conn, job_owner.job_id)
            hashes.append(snapshot.workflow_hash)
            assert await histories.estimate(conn, snapshot) is None
        assert list(histories._known) == hashes[1:]
        await complete_all(dsn)
        await job_owner.submit(single(workflow_id="c"))
        await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'running' WHERE job_id = %s", job_owner.job_id)
        snapshot = await load_snapshot(conn, job_owner.job_id)
        assert await histories.estimate(conn, snapshot) is None, "it was asked a moment ago"
        result = await Histories().estimate(conn, snapshot)
        assert result is not None and result.basis is Basis.HISTORY


# Histories from hand-written rows


async def complete_all(dsn: str, seconds: float = 10.0) -> None:
    """Complete every job, each node taking this many seconds."""
    await rows(
        dsn,
        """WITH j AS (UPDATE dagapp.dag_jobs SET status = 'completed', owner_id = NULL WHERE status <> 'completed'
                      RETURNING job_id)
           UPDATE dagapp.dag_node_states n SET status = 'completed', dispatched_at = now(),
               started_at = now() + interval '2 s', completed_at = now() + make_interval(secs => %s + 2)
           FROM j WHERE n.job_id = j.job_id""",
        seconds,
    )


async def test_the_median_counts_and_the_same_definition_is_preferred(dsn: str) -> None:
    former, present = chain(2), chain(2, timeout_seconds=77)
    async with owner(dsn) as job_owner, opened(dsn, application="test") as conn:
        assert await usual_times(conn, present) == {}
        for seconds in (100, 101, 900):
            await job_owner.submit(former)
            await complete_all(dsn, seconds)
        assert (await usual_times(conn, present))["n0"] == Usual(101.0, 2.0), "better than nothing"
        for seconds in (10, 12, 50):
            await job_owner.submit(present)
            await complete_all(dsn, seconds)
        assert (await usual_times(conn, present))["n1"] == Usual(12.0, 2.0)
        await job_owner.submit(present)  # Has not ended, so it is no history.
        assert (await usual_times(conn, present))["n1"] == Usual(12.0, 2.0)


async def test_skipped_branches_and_empty_fan_outs_are_recognised(dsn: str) -> None:
    nodes: dict[str, Any] = {
        "choose": ConditionalNode(
            branches=(Branch(name="rare", when="{{ false }}", next=("repair",)), Branch(name="usual", next=("spread",)))
        ),
        "repair": task("echo", "END"),
        "spread": FanOutNode(source=[], task=child(), next=("END",)),
    }
    workflow = graph(nodes, "branched", start="choose")
    async with web(dsn, workflow, runs=True) as api:
        assert (await api.fleet.run(workflow))["status"] == "completed"
    async with opened(dsn, application="test") as conn:
        assert await usual_times(conn, workflow) == {
            "repair": Usual(None, is_skipped=True),
            "spread": Usual(None, items=0),
        }


async def test_a_large_fan_out_is_sampled(dsn: str) -> None:
    workflow = fan()
    async with owner(dsn) as job_owner, opened(dsn, application="test") as conn:
        await job_owner.submit(workflow, {"items": []})
        await complete_all(dsn)
        await rows(
            dsn,
            """WITH fan AS (
                   UPDATE dagapp.dag_node_states SET output = '{"fan_out_count": 5000}' WHERE node_id = 'spread'
                   RETURNING *
               )
               INSERT INTO dagapp.dag_node_states
                   (job_id, node_id, status, parent_node_id, fan_out_index, started_at, completed_at)
               SELECT job_id, 'spread__' || i, 'completed', 'spread', i,
                   started_at + make_interval(secs => 4 * (i / 50)),
                   started_at + make_interval(secs => 4 * (i / 50) + 4)
               FROM fan, generate_series(0, 4999) AS i""",
        )
        spread = (await usual_times(conn, workflow))["spread"]
        assert (spread.run_seconds, spread.items) == (4.0, 5000)
        assert spread.parallel == pytest.approx(50, rel=0.02)
        snapshot = await load_snapshot(conn, job_owner.job_id)
        assert snapshot.job.nodes["spread"].fan is not None
        assert percent_done(snapshot.job) == 100.0


async def test_an_output_that_resembles_a_fan_outs_is_not_misread(dsn: str) -> None:
    async with owner(dsn) as job_owner, opened(dsn, application="test") as conn:
        await job_owner.submit(single())
        await complete_all(dsn)
        await rows(dsn, """UPDATE dagapp.dag_node_states SET output = '{"fan_out_count": "many"}'""")
        assert (await load_snapshot(conn, job_owner.job_id)).job.nodes["work"].fan is None
        assert (await usual_times(conn, single()))["work"] == Usual(10.0, 2.0)


async def test_a_job_without_node_rows_can_be_loaded(dsn: str) -> None:
    async with owner(dsn) as job_owner, opened(dsn, application="test") as conn:
        await job_owner.submit(single())
        await rows(dsn, "DELETE FROM dagapp.dag_node_states")
        snapshot = await load_snapshot(conn, job_owner.job_id)
        assert (snapshot.job.nodes, percent_done(snapshot.job)) == ({}, 0.0)
        assert snapshot.job.now - datetime.now(UTC) < timedelta(minutes=1)


async def test_a_job_with_an_unclaimable_task_has_no_estimated_end(dsn: str) -> None:
    three = chain(3, "work")
    async with gated(dsn, three) as (api, gate):
        await api.fleet.run(three)
        gate.open.clear()
        progress = await begun(api, three)
        assert progress["estimated_completion"] is not None
        job_id = progress["job_id"]
        await rows(dsn, "UPDATE dagapp.dag_workers SET wanted = 'drain'")
        [worker] = [role for role in api.fleet.roles if isinstance(role, WorkerRole)]
        await wait_until(lambda: worker.instance.desired_state == "drain")  # Until then it claims the next task.
        gate.open.set()
        waits = "SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE job_id = %s"
        await api.fleet.until(waits, lambda: [int(job_id)])
        progress = await api.get(f"/api/v1/jobs/{job_id}/progress")
        assert (progress["job_status"], progress["estimated_completion"]) == ("running", None)
        await rows(dsn, "UPDATE dagapp.dag_workers SET wanted = 'run'")
        await api.fleet.completed(int(job_id))
