"""Jobs whose tasks add nodes, on a real database, with killed owners and workers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fleet import Fleet, fleet, graph, handlers, retry, rows, single, task, wait_until
from web import Web, web

from dagmaster.errors import Invalid, JobEnded, TaskOver
from dagmaster.handlers import Handler, HandlerContext, Registry
from dagmaster.ids import JobId
from dagmaster.model.added_nodes import AddedDependency, AddedGroup, AddedNode, result_of
from dagmaster.model.dynamic_nodes import encode_slices
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import WaitNode
from dagmaster.queues.contract import Registration, TaskReport
from dagmaster.queues.http import HttpTransport
from dagmaster.store.connect import opened
from dagmaster.store.dynamic_nodes import add_to_job
from dagmaster.store.statements import run

ONCE = RetryPolicy(max_attempts=0)


def node(ctx: HandlerContext, name: Any, *after: Any, handler: str = "echo", **fields: Any) -> AddedNode:
    fields = {"retry": ONCE, "params": {"name": name}, **fields}
    return AddedNode(
        f"{ctx.node_id}.{name}", handler, after=tuple(f"{ctx.node_id}.{source}" for source in after), **fields
    )


async def adds_a_chain(ctx: HandlerContext) -> dict[str, Any]:
    """Add three nodes in a row; the second gets the first one's output, and the result is the last one's."""
    second = node(ctx, 2, handler="echo", params={"first": result_of(f"{ctx.node_id}.1")})
    await ctx.add(encode_slices([node(ctx, 1), second, node(ctx, 3, 2)]))
    return {"$result_of": f"{ctx.node_id}.3"}


async def test_a_task_adds_nodes_and_returns_the_result_of_one(dsn: str) -> None:
    async with fleet(dsn, adds=adds_a_chain) as running:
        await running.orchestrator()
        await running.worker()
        [job] = await running.completed(await running.submit(single("adds")))
        nodes = await running.nodes(job["job_id"])
        assert job["result_data"]["work"] == nodes["work.3"]["output"] == nodes["work"]["output"]
        assert nodes["work.2"]["input_params"] == {"first": nodes["work.1"]["output"]}
        assert (nodes["work.3"]["parent_node_id"], nodes["work.3"]["fan_out_index"]) == ("work", None)
        assert nodes["work.3"]["definition"]["after"] == ["work.2"]
        [event] = await running.events(job["job_id"], "tasks_added")
        assert event["event_data"] == {"added_by": "work", "count": 3, "node_ids": ["work.1", "work.2", "work.3"]}
        await running.is_clean()


async def test_a_local_worker_adds_nodes_too(dsn: str) -> None:
    async with fleet(dsn, adds=adds_a_chain) as running:
        owner = await running.orchestrator()
        await running.worker(owner=owner)
        jobs = [await running.submit(single("adds")) for _ in range(10)]
        for job in await running.completed(*jobs):
            assert len(await running.nodes(job["job_id"])) == 6
        await running.is_clean()


def adds_in_a_thread(ctx: HandlerContext) -> dict[str, Any]:
    ctx.add(encode_slices([node(ctx, 1)]))
    return {"$result_of": f"{ctx.node_id}.1"}


async def test_a_handler_in_a_thread_waits_until_its_nodes_are_stored(dsn: str) -> None:
    async with fleet(dsn, adds=adds_in_a_thread) as running:
        await running.orchestrator()
        await running.worker()
        [job] = await running.completed(await running.submit(single("adds")))
        assert job["result_data"]["work"]["echoed_params"]["name"] == 1


async def adds_groups(ctx: HandlerContext) -> None:
    gates = [
        AddedNode("work.in", type="gate", after=("work.1",)),
        AddedNode("work.out", type="gate", after=("work.2",)),
    ]
    members = [node(ctx, 1, task=11), node(ctx, 2, "in", task=12, group=70), node(ctx, 3, "out", task=13)]
    groups = [AddedGroup(70, "inner", 71), AddedGroup(71, "outer")]
    dependencies = [AddedDependency(11, "task", 70, "group"), AddedDependency(70, "group", 13, "task")]
    await ctx.add(encode_slices([*members, *gates], groups, dependencies))


async def test_the_graph_shows_added_groups_and_dependencies(dsn: str) -> None:
    async with web(dsn, single("adds")) as api:
        api.fleet.known = handlers(adds=adds_groups)
        await api.fleet.orchestrator()
        await api.fleet.worker()
        job_id = await api.fleet.submit(single("adds"))
        await api.fleet.completed(job_id)
        drawn = await api.get(f"/api/v1/jobs/{job_id}/graph")
    groups = [(group["group_id"], group["parent_group_id"], group["name"], group["nodes"]) for group in drawn["groups"]]
    assert groups == [("70", "71", "inner", 1), ("71", None, "outer", 0)]
    ends = ("previous_type", "previous_id", "previous_node_id", "next_type", "next_id", "next_node_id")
    assert [tuple(dependency[name] for name in ends) for dependency in drawn["dependencies"]] == [
        ("task", "11", "work.1", "group", "70", None),
        ("group", "70", None, "task", "13", "work.3"),
    ]


async def test_groups_and_dependencies_are_stored_as_rows(dsn: str) -> None:
    async with fleet(dsn, adds=adds_groups) as running:
        await running.orchestrator()
        await running.worker()
        [job] = await running.completed(await running.submit(single("adds")))
        groups = await running.rows("SELECT group_id, parent_group_id, name, job_id FROM dagapp.dag_groups ORDER BY 1")
        assert [tuple(row.values()) for row in groups] == [
            (70, 71, "inner", job["job_id"]),
            (71, None, "outer", job["job_id"]),
        ]
        dependencies = await running.rows(
            "SELECT previous_id, previous_type, next_id, next_type FROM dagapp.dag_dependencies"
        )
        assert {tuple(row.values()) for row in dependencies} == {(11, "task", 70, "group"), (70, "group", 13, "task")}
        order = [line for line in await running.trace(job["job_id"]) if line.startswith("node_completed work.")]
        assert [line.rpartition(".")[2] for line in order] == ["1", "in", "2", "out", "3"]


async def test_ten_thousand_nodes_can_be_added_in_one_call(dsn: str) -> None:
    async def adds(ctx: HandlerContext) -> None:
        many = [node(ctx, number, params={"n": number}) for number in range(10_000)]
        await ctx.add(
            encode_slices([*many, AddedNode("work.all", type="gate", after=tuple(node.node_id for node in many))])
        )

    async with fleet(dsn, adds=adds) as running:
        owner = await running.orchestrator()
        await running.worker(owner=owner, concurrency=32)
        job_id = await running.submit(single("adds"))
        small = await running.submit(single("echo"))
        await running.completed(small, seconds=60)
        await running.completed(job_id, seconds=120)
        assert Counter((await running.statuses(job_id)).values()) == {"completed": 10_004}
        await running.is_clean()


async def test_the_nodes_of_a_killed_worker_are_added_once(dsn: str) -> None:
    began: list[HandlerContext] = []

    async def adds(ctx: HandlerContext) -> dict[str, Any]:
        began.append(ctx)
        again = retry(5)  # The worker may be killed with any of them.
        await ctx.add(encode_slices([node(ctx, 1, retry=again), node(ctx, 2, 1, retry=again)]))
        if ctx.retry_count == 0:
            await asyncio.Event().wait()
        await ctx.add(encode_slices([node(ctx, 3, 2, retry=again)]))
        return {"$result_of": "work.3"}

    async with fleet(dsn, adds=adds) as running:
        await running.orchestrator(worker_lost_after_seconds=1.0)
        first = await running.worker()
        job_id = await running.submit(single("adds", retry=retry(5)))
        await running.until("SELECT count(*) >= 2 AS ok FROM dagapp.dag_node_states WHERE node_id LIKE 'work.%'")
        await first.kill()
        await running.worker()
        [job] = await running.completed(job_id)
        assert len(began) >= 2
        assert job["result_data"]["work"]["echoed_params"]["name"] == 3
        assert [e["event_data"]["node_ids"] for e in await running.events(job_id, "tasks_added")] == [
            ["work.1", "work.2"],
            ["work.3"],
        ]
        await running.is_clean()


async def test_a_new_owner_continues_added_nodes(dsn: str) -> None:
    go_on = asyncio.Event()

    async def adds(ctx: HandlerContext) -> dict[str, Any]:
        last = node(ctx, 3, 2, params={"given": result_of("work.1")})
        await ctx.add(encode_slices([node(ctx, 1), node(ctx, 2, 1, handler="waits"), last]))
        return {"$result_of": "work.3"}

    async def waits(ctx: HandlerContext) -> None:
        await go_on.wait()

    async with fleet(dsn, adds=adds, waits=waits) as running:
        first = await running.orchestrator(orphan_threshold_seconds=1.0)
        await running.worker()
        job_id = await running.submit(single("adds"))
        await running.until("SELECT result_of = 'work.3' AS ok FROM dagapp.dag_node_states WHERE node_id = 'work'")
        await first.kill()
        await running.orchestrator(orphan_threshold_seconds=1.0)
        go_on.set()
        [job] = await running.completed(job_id)
        nodes = await running.nodes(job_id)
        assert job["result_data"]["work"]["echoed_params"]["given"] == nodes["work.1"]["output"]
        await running.is_clean()


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        ([b'{"nodes": [{"id": "work.1"}]}'], "a task needs a handler"),
        ([b'{"nodes": 7}'], "nodes must be a list"),
        ([b"[1, 2]"], "must be an object"),
        ([b'{"nodes": [{"id": "END", "handler": "echo"}]}'], "cannot add a node with the id END"),
        ([b'{"nodes": [{"id": "work.1", "handler": "echo", "after": ["no"]}]}'], "which is not a node of the job"),
    ],
)
async def test_invalid_nodes_fail_the_attempt_permanently(dsn: str, slices: list[bytes], reason: str) -> None:
    async def adds(ctx: HandlerContext) -> None:
        await ctx.add(slices)
        await asyncio.Event().wait()

    async with fleet(dsn, adds=adds) as running:
        await running.orchestrator()
        await running.worker()
        [job] = await running.ended(await running.submit(single("adds", retry=retry(3))))
        assert job["status"] == "failed"
        assert "the nodes that it added were refused" in job["error_message"] and reason in job["error_message"]
        await running.is_clean()


async def test_an_ended_attempt_adds_nothing(dsn: str) -> None:
    refusals: list[bool] = []

    async def adds(ctx: HandlerContext) -> None:
        began.set()
        await withdrawn.wait()
        try:
            await ctx.add(encode_slices([node(ctx, 1)]))
        finally:
            refusals.append(True)

    began, withdrawn = asyncio.Event(), asyncio.Event()
    async with fleet(dsn, adds=adds) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single("adds"))
        await began.wait()
        await running.until("SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE node_id = 'work'")
        await running.rows("UPDATE dagapp.dag_node_states SET task_id = 'another' WHERE node_id = 'work'")
        withdrawn.set()
        await wait_until(lambda: bool(refusals))
        assert await running.value("SELECT count(*) FROM dagapp.dag_mailbox WHERE kind = 'added'") == 0
        await running.cancel(job_id)
        await running.ended(job_id)
        assert "work.1" not in await running.nodes(job_id)


@pytest.mark.parametrize("bad", [b"rubbish", b'{"nodes": [{"id": "work.1", "params": {"x": "\\u0000"}}]}'])
async def test_nodes_that_cannot_be_stored_raise_in_the_handler(dsn: str, bad: bytes) -> None:
    async def adds(ctx: HandlerContext) -> None:
        await ctx.add([bad])

    async with fleet(dsn, adds=adds) as running:
        await running.orchestrator()
        await running.worker()
        job = await running.run(single("adds"))
        assert "the added nodes cannot be stored" in job["error_message"]


# From outside.


async def waiting_job(running: Fleet) -> JobId:
    await running.orchestrator()
    await running.worker()
    job_id = await running.submit(single("waits"))
    await running.until("SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE node_id = 'work'")
    return job_id


async def test_nodes_can_be_added_through_the_store(dsn: str) -> None:
    go_on = asyncio.Event()

    async def waits(ctx: HandlerContext) -> None:
        await go_on.wait()

    async with fleet(dsn, waits=waits) as running, opened(dsn, application="test") as conn:
        job_id = await waiting_job(running)
        added = [
            AddedNode("added.1", "echo", queue="q", after=("work",), retry=ONCE),
            AddedNode("added.2", "echo", {"x": result_of("added.1")}, queue="q", retry=ONCE),
        ]
        assert await add_to_job(conn, job_id, encode_slices(added), actor="ann") == ["added.1", "added.2"]
        await running.until("SELECT count(*) = 2 AS ok FROM dagapp.dag_node_states WHERE node_id LIKE 'added.%'")
        with pytest.raises(Invalid, match="no node nobody"):
            await add_to_job(conn, job_id, encode_slices([AddedNode("added.3", "echo", queue="q", after=("nobody",))]))
        with pytest.raises(Invalid, match=r"not 'work\.1'"):
            await add_to_job(conn, job_id, encode_slices([AddedNode("work.1", "echo", queue="q")]))
        go_on.set()
        await running.completed(job_id)
        assert (await running.statuses(job_id))["added.2"] == "completed"
        with pytest.raises(JobEnded):
            await add_to_job(conn, job_id, encode_slices([AddedNode("added.4", "echo", queue="q")]))


@asynccontextmanager
async def waiting_behind_the_api(dsn: str) -> AsyncIterator[tuple[Web, asyncio.Event]]:
    """A server, and a gate for the tasks of its jobs."""
    go_on = asyncio.Event()

    async def waits(ctx: HandlerContext) -> None:
        await go_on.wait()

    async with web(dsn, single("waits")) as api:
        api.fleet.known = handlers(waits=waits)
        yield api, go_on


async def test_the_api_adds_tasks_to_a_running_job(dsn: str) -> None:
    async with waiting_behind_the_api(dsn) as (api, go_on):
        job_id = await waiting_job(api.fleet)
        path = f"/api/v1/jobs/{job_id}/tasks"
        task = {"handler": "echo", "queue": "q", "params": {"x": 1}, "after": ["work"], "retry": {"max_attempts": 0}}
        reply = await api.post(path, {"tasks": [task, {**task, "label": "second"}]}, 201)
        assert reply["is_done"] is True and len(reply["node_ids"]) == 2
        for bad, reason in (
            ({"after": ["nobody"]}, "no node nobody"),
            ({"retry": {"max_attempts": -1}}, "retry policy"),
            ({"after": ["a b"]}, "must be a node id"),
        ):
            error = await api.post(path, {"tasks": [{**task, **bad}]}, 422)
            assert reason in error["error"]["message"]
        go_on.set()
        await api.fleet.completed(job_id)
        assert {name for name in await api.fleet.statuses(job_id) if name.startswith("added.")} == set(
            reply["node_ids"]
        )
        await api.post(path, {"tasks": [task]}, 409)
        await api.post("/api/v1/jobs/1/tasks", {"tasks": [task]}, 404)


async def test_nodes_added_by_the_api_follow_their_handlers_contract(dsn: str) -> None:
    async with waiting_behind_the_api(dsn) as (api, go_on):
        api.services.registry = Registry()
        api.services.registry.register(Handler("own", adds_a_chain, queue="special", timeout_seconds=7, retry=ONCE))
        path = f"/api/v1/jobs/{await waiting_job(api.fleet)}/tasks"
        added = [{"handler": "own"}, {"handler": "own", "queue": "q", "timeout_seconds": 9}]
        reply = await api.post(path, {"tasks": added}, 201)
        nodes = await rows(dsn, "SELECT * FROM dagapp.dag_node_states WHERE node_id = ANY(%s)", reply["node_ids"])
        defined = {node["node_id"]: node["definition"] for node in nodes}
        first, second = (defined[node_id] for node_id in reply["node_ids"])
        assert (first["queue"], first["timeout_seconds"], first["retry"]["max_attempts"]) == ("special", 7, 0)
        assert (second["queue"], second["timeout_seconds"], second["retry"]["max_attempts"]) == ("q", 9, 0)
        go_on.set()


async def test_a_refused_addition_is_reported_to_the_caller(dsn: str) -> None:
    nodes: dict[str, Any] = {"work": task("echo", "END"), "last": WaitNode(signal="go")}
    async with web(dsn, graph(nodes, start="work", finally_=("last",)), runs=True) as api:
        job_id = (await api.post("/api/v1/jobs", {"workflow_id": "test"}, 201))["job_id"]
        await api.fleet.until("SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE node_id = 'last'")
        added = {"tasks": [{"handler": "echo", "queue": "q"}]}
        error = await api.post(f"/api/v1/jobs/{job_id}/tasks", added, 409)
        assert "the added nodes were refused: only the finalizers of the job are left" in error["error"]["message"]


async def test_a_remote_worker_adds_nodes_over_http(dsn: str) -> None:
    async with web(dsn, single("echo")) as api:
        await api.fleet.orchestrator()
        async with api.real_server() as url:
            transport = HttpTransport(url)
            try:
                async with transport.open(None) as link:
                    await link.register(Registration("far", 7, ("q",), ("echo",), 4))
                    job_id = int((await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201))["job_id"])
                    [task] = await link.exchange([], 1)
                    slices = encode_slices([AddedNode(f"work.{n}", "echo", retry=ONCE) for n in range(3)], size=2)
                    await link.add(task.task_id, slices)
                    await link.add(task.task_id, slices)
                    report = TaskReport(task.task_id, task.job_id, task.node_id, "completed", b"{}")
                    await link.exchange([report], 0)
                    await api.fleet.until(
                        "SELECT count(*) = 3 AS ok FROM dagapp.dag_node_states WHERE node_id LIKE 'work.%'"
                    )
                    with pytest.raises(TaskOver):
                        await link.add(task.task_id, slices)
                await api.fleet.worker()
                await api.fleet.completed(job_id)
            finally:
                await transport.close()


async def test_added_nodes_are_visible_in_api_and_pages(dsn: str) -> None:
    """Progress, graph, nodes, explanations and the doctor do not take them for children of a fan-out."""
    go_on = asyncio.Event()

    async def adds(ctx: HandlerContext) -> dict[str, Any]:
        await ctx.add(encode_slices([node(ctx, 1), node(ctx, 2, handler="waits"), node(ctx, 3, 2)]))
        return {"$result_of": "work.3"}

    async def waits(ctx: HandlerContext) -> None:
        await go_on.wait()

    async with web(dsn, single("adds")) as api:
        api.fleet.known = handlers(adds=adds, waits=waits)
        await api.fleet.orchestrator()
        await api.fleet.worker()
        job_id = await api.fleet.submit(single("adds"))
        await api.fleet.until(
            "SELECT count(*) = 3 AS ok FROM dagapp.dag_node_states WHERE "
            "(node_id, status::text) IN (('work.1', 'completed'), ('work.2', 'running'), ('work.3', 'pending'))"
        )
        await api.fleet.until("SELECT result_of IS NOT NULL AS ok FROM dagapp.dag_node_states WHERE node_id = 'work'")
        path = f"/api/v1/jobs/{job_id}"
        progress = await api.get(f"{path}/progress")
        assert (progress["nodes"]["total"], progress["nodes"]["completed"]) == (6, 2)
        assert progress["estimated_completion"] is None and 0 < progress["overall_percent"] < 100
        [drawn] = [node for node in (await api.get(f"{path}/graph"))["nodes"] if node["node_id"] == "work"]
        assert (drawn["children"], drawn["added"]) == ({}, {"completed": 1, "running": 1, "pending": 1})
        explanations = {name: await api.get(f"{path}/nodes/{name}/explain") for name in ("work", "work.2", "work.3")}
        assert "returns the result of `work.3`, which is waiting" in explanations["work"]["sentence"]
        assert "waits for `work.2`, which is running" in explanations["work.3"]["sentence"]
        sentence = (await api.get(f"{path}/explain"))["sentence"]
        assert "waits for `work.2` that `work` has added" in sentence
        # Two of them start at the same moment in either order.
        assert sorted(item["node_id"] for item in (await api.get(f"{path}/nodes?parent=work"))["items"]) == [
            "work.1",
            "work.2",
            "work.3",
        ]
        async with opened(dsn, application="test") as conn:
            cursor = await run(conn, "find_lost_runs", {"settle_seconds": 0.0, "limit": 10})
            assert await cursor.fetchall() == []
        go_on.set()
        await api.fleet.completed(job_id)
        assert (await api.get(f"{path}/progress"))["overall_percent"] == 100
