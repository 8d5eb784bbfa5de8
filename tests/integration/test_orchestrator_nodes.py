"""Every type of node, from submission to result."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from fleet import Fleet, WorkerRole, chain, child, fan, fleet, graph, rows, task, wait_until

from dagmaster.handlers import HandlerContext
from dagmaster.model.workflow import Branch, ConditionalNode, DependsOn, FanInNode, FanOutNode

RUNS: dict[str, int] = {}


async def number(ctx: HandlerContext) -> dict[str, Any]:
    return {"n": ctx.params["x"], "list": [ctx.params["x"]] * 2, "flag": True}


async def count_runs(ctx: HandlerContext) -> dict[str, Any]:
    RUNS[ctx.task_id] = RUNS.get(ctx.task_id, 0) + 1
    return {"task": ctx.task_id}


async def end_after_either(ctx: HandlerContext) -> None:
    await wait_until(lambda: f"{ctx.job_id}_either_0" in RUNS)


@pytest.fixture
async def running(dsn: str) -> AsyncIterator[Fleet]:
    """An orchestrator and a worker that is not local."""
    async with fleet(dsn, number=number, count_runs=count_runs, end_after_either=end_after_either) as running:
        await running.orchestrator()
        await running.worker()
        yield running


@pytest.fixture(params=["near", "far"])
async def anywhere(dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    """The worker is local or not."""
    async with fleet(dsn, number=number, count_runs=count_runs) as running:
        orchestrator = await running.orchestrator()
        await running.worker(owner=orchestrator if request.param == "near" else None)
        yield running


ECHO = """job_created
node_ready START
job_started
node_dispatched START
node_started START
node_completed START
node_ready echo_handler
node_dispatched echo_handler
node_started echo_handler
node_completed echo_handler
node_ready END
node_dispatched END
node_started END
node_completed END
job_completed""".splitlines()


async def test_an_echo_job_has_exactly_these_events(anywhere: Fleet) -> None:
    definition = graph(
        {"echo_handler": task("echo", "END", params={"m": "{{ inputs.m }}"})},
        "echo_test",
        start="echo_handler",
        inputs={"m": "string"},
    )
    job = await anywhere.run(definition, {"m": "hällo"})
    assert job["status"] == "completed"
    assert job["result_data"]["echo_handler"]["echoed_params"] == {"m": "hällo"}
    assert await anywhere.trace(job["job_id"]) == ECHO
    nodes = await anywhere.nodes(job["job_id"])
    assert nodes["echo_handler"]["task_id"] == f"{job['job_id']}_echo_handler_0"
    assert {row["status"] for row in nodes.values()} == {"completed"}
    events = {
        row["event_type"]: row for row in await anywhere.events(job["job_id"]) if row["node_id"] == "echo_handler"
    }
    assert events["node_ready"]["event_data"] == {"dependencies": ["START"]}
    assert events["node_dispatched"]["event_data"] == {"queue": "q", "handler": "echo"}
    assert events["node_started"]["source_app"] == "worker"
    assert events["node_started"]["event_data"]["worker_id"] == cast("WorkerRole", anywhere.roles[1]).id
    assert events["node_completed"]["event_data"] == {"output_keys": ["echoed_params"], "ended_by": "result"}
    assert events["node_completed"]["duration_ms"] is not None
    [done] = await anywhere.events(job["job_id"], "job_completed")
    assert done["event_data"]["node_count"] == 3
    assert done["event_status"] == "success"
    await anywhere.is_clean()


async def test_data_flows_along_the_edges(running: Fleet) -> None:
    nodes = {
        "a": task("number", "b", params={"x": "{{ inputs.x }}"}),
        "b": task("number", "c", params={"x": "{{ nodes.a.output.n * 2 }}"}),
        "c": task("echo", "END", params={"all": "{{ nodes.a.output }}", "text": "a is {{ nodes.a.status }}"}),
    }
    job = await running.run(graph(nodes, start="a", inputs={"x": "integer"}), {"x": 21})
    assert job["result_data"]["b"]["n"] == 42
    echoed = job["result_data"]["c"]["echoed_params"]
    assert echoed == {"all": {"n": 21, "list": [21, 21], "flag": True}, "text": "a is completed"}


def routed() -> Any:
    """A conditional with an optional step: `big` may be skipped, `after` runs in any case."""
    return graph(
        {
            "pick": ConditionalNode(
                branches=(
                    Branch(name="huge", when="inputs.size > 100", next=("big",)),
                    Branch(name="small", when=None, next=("after",)),
                ),
            ),
            "big": task("echo", "bigger"),
            "bigger": task("echo", "after"),
            "after": task("echo", "END"),
        },
        "routed",
        start="pick",
        inputs={"size": "integer"},
    )


async def test_a_conditional_takes_one_branch_and_an_optional_step_can_be_skipped(anywhere: Fleet) -> None:
    small, huge = await anywhere.ended(
        await anywhere.submit(routed(), {"size": 1}), await anywhere.submit(routed(), {"size": 1000})
    )
    assert await anywhere.statuses(small["job_id"]) == {
        "START": "completed",
        "pick": "completed",
        "big": "skipped",
        "bigger": "skipped",
        "after": "completed",
        "END": "completed",
    }
    assert set((await anywhere.statuses(huge["job_id"])).values()) == {"completed"}
    assert small["result_data"]["pick"]["taken_branch"] == "small"
    skipped = await anywhere.events(small["job_id"], "node_skipped")
    assert [(row["node_id"], row["event_data"]["reason"]) for row in skipped] == [
        ("big", "conditional_branch_not_taken"),
        ("bigger", "conditional_branch_not_taken"),
    ]
    assert {"big", "bigger"}.isdisjoint(small["result_data"])


async def test_any_of_runs_once_after_the_first_completion(running: Fleet) -> None:
    nodes = {
        "fork": task("echo", "left", "right"),
        "left": task("echo"),
        "right": task("end_after_either"),
        "either": task("count_runs", "END", depends_on=DependsOn(any_of=("left", "right"))),
        "both": task("count_runs", "END", depends_on=DependsOn(all_of=("left", "right"))),
    }
    job = await running.run(graph(nodes, start="fork"))
    assert job["status"] == "completed"
    assert set((await running.statuses(job["job_id"])).values()) == {"completed"}
    assert RUNS[f"{job['job_id']}_either_0"] == RUNS[f"{job['job_id']}_both_0"] == 1
    steps = await running.trace(job["job_id"])
    dispatched = [steps.index(f"node_dispatched {name}") for name in ("either", "both")]
    assert dispatched[0] < steps.index("node_completed right") < dispatched[1]


async def test_a_fan_in_aggregates_in_each_mode(anywhere: Fleet) -> None:
    expected = {
        "collect": {"results": [{"n": n, "list": [n, n], "flag": True} for n in (5, 6, 7)], "count": 3, "failed": 0},
        "concat": {"results": [5, 5, 5, True, 6, 6, 6, True, 7, 7, 7, True], "count": 12, "failed": 0},
        "sum": {"total": 18, "count": 3, "failed": 0},
        "first": {"result": {"n": 5, "list": [5, 5], "flag": True}, "count": 3, "failed": 0},
        "last": {"result": {"n": 7, "list": [7, 7], "flag": True}, "count": 3, "failed": 0},
        "merge": {"result": {"n": 7, "list": [7, 7], "flag": True}, "count": 3, "failed": 0},
    }
    ids = [await anywhere.submit(fan(mode, handler="number"), {"items": [5, 6, 7]}) for mode in expected]
    jobs = await anywhere.completed(*ids)
    assert {mode: job["result_data"]["gather"] for mode, job in zip(expected, jobs, strict=True)} == expected
    children = [row for row in (await anywhere.nodes(ids[0])).values() if row["parent_node_id"]]
    assert {(row["node_id"], row["fan_out_index"], row["parent_node_id"]) for row in children} == {
        (f"spread__{n}", n, "spread") for n in range(3)
    }
    assert all(f"spread__{n}" not in job["result_data"] for job in jobs for n in range(3))
    await anywhere.is_clean()


async def test_an_empty_fan_out_completes_at_once(running: Fleet) -> None:
    job = await running.run(fan(), {"items": []})
    assert job["result_data"]["spread"] == {"fan_out_count": 0, "child_node_ids": []}
    assert job["result_data"]["gather"] == {"results": [], "count": 0, "failed": 0}


async def test_items_of_any_type_reach_the_children_unchanged(running: Fleet) -> None:
    items = [1, "zwei", None, [3, [4]], {"five": {"six": 7.5}}, True, ""]
    job = await running.run(
        fan(params={"x": "{{ item }}", "at": "{{ index }} of {{ fan_out.total }}"}), {"items": items}
    )
    echoed = [result["echoed_params"] for result in job["result_data"]["gather"]["results"]]
    assert echoed == [{"x": item, "at": f"{n} of {len(items)}"} for n, item in enumerate(items)]


async def test_a_fan_out_over_another_nodes_output_and_a_fan_out_after_a_fan_in(running: Fleet) -> None:
    nodes: dict[str, Any] = {
        "list": task("echo", "spread", params={"items": [1, 2, 3]}),
        "spread": FanOutNode(
            source="{{ nodes.list.output.echoed_params.items }}", task=child("number"), next=("gather",)
        ),
        "gather": FanInNode(next=("again",)),
        "again": FanOutNode(
            source="{{ nodes.gather.output.results | map(attribute='n') | list }}", task=child("number"), next=("sum",)
        ),
        "sum": FanInNode(aggregation="sum", source_node="again", next=("END",)),
    }
    job = await running.run(graph(nodes, start="list"))
    assert job["result_data"]["sum"] == {"total": 6, "count": 3, "failed": 0}


async def test_a_wide_fan_out_is_created_in_batches_and_each_child_runs_once(anywhere: Fleet) -> None:
    runs_before = dict(RUNS)
    job = await anywhere.run(fan(handler="count_runs"), {"items": list(range(300))})
    assert job["status"] == "completed"
    new = {task_id: runs for task_id, runs in RUNS.items() if task_id not in runs_before}
    assert new == {f"{job['job_id']}_spread__{n}_0": 1 for n in range(300)}
    await anywhere.is_clean()


async def test_max_parallel_limits_running_children(dsn: str) -> None:
    at_once, most, three = 0, 0, asyncio.Event()

    async def watch(ctx: HandlerContext) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 3:
            three.set()
        await three.wait()  # The first ones may start far apart.
        await asyncio.sleep(0.01)
        at_once -= 1

    async with fleet(dsn, watch=watch) as running:
        await running.orchestrator()
        await running.worker(concurrency=16)
        job = await running.run(fan(handler="watch", max_parallel=3), {"items": list(range(20))})
        assert job["status"] == "completed"
    assert most == 3


async def test_a_job_keeps_its_definition_when_another_version_is_submitted(dsn: str) -> None:
    gate = asyncio.Event()

    async def wait(ctx: HandlerContext) -> None:
        await gate.wait()

    def version(number: int) -> Any:
        nodes = {"hold": task("wait", "say"), "say": task("echo", "END", params={"version": number})}
        return graph(nodes, "pinned", start="hold", version=number)

    async with fleet(dsn, wait=wait) as running:
        await running.orchestrator()
        await running.worker()
        old = await running.submit(version(1))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE status = 'running'")
        new = await running.submit(version(2))
        first, *_ = running.roles
        await first.stop()  # The next owner has only stored state.
        await running.orchestrator()
        gate.set()
        jobs = await running.completed(old, new)
        assert [job["result_data"]["say"]["echoed_params"]["version"] for job in jobs] == [1, 2]
        assert [job["result_data"]["_provenance"]["workflow_version"] for job in jobs] == [1, 2]
        assert [job["workflow_version"] for job in jobs] == [1, 2]
        assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_workflows WHERE workflow_id = 'pinned'")) == 2


async def test_an_error_in_an_expression_at_run_time_fails_the_node(running: Fleet) -> None:
    broken = {
        "a template": graph(
            {
                "work": task("echo", "END", params={"x": "{{ nodes.first.output.nothing }}"}),
                "first": task("echo", "work"),
            },
            start="first",
        ),
        "a source that is no list": graph(
            {
                "first": task("echo", "spread"),
                "spread": FanOutNode(
                    source="{{ nodes.first.output }}", task=child(), next=("gather",), retry={"max_attempts": 0}
                ),
                "gather": FanInNode(next=("END",)),
            },
            start="first",
        ),
    }
    ids = [await running.submit(definition) for definition in broken.values()]
    for job in await running.ended(*ids):
        assert job["status"] == "failed"
        [failed] = await running.events(job["job_id"], "node_failed")
        assert failed["error_message"] in job["error_message"]
        nodes = await running.nodes(job["job_id"])
        assert nodes[failed["node_id"]]["dispatched_at"] is None


async def test_nodes_of_several_jobs_do_not_mix(running: Fleet) -> None:
    ids = [await running.submit(chain(3, params={"me": f"{n}"})) for n in range(12)]
    for n, job in enumerate(await running.completed(*ids)):
        assert job["result_data"]["n2"]["echoed_params"] == {"me": f"{n}"}
