"""Tasks that add tasks to their own job, with real orchestrators and workers."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fleet import Fleet, fleet, graph

from dagmaster.errors import Invalid, JobEnded
from dagmaster.fleet import rules_of
from dagmaster.handlers.current import find_current_task
from dagmaster.model.workflow import ChildTask, FanInNode, FanOutNode
from dagmaster.python.apply_items import apply, create_task
from dagmaster.python.graphs import Group, Item, Task, within
from dagmaster.python.jobs import add_task_to_job, create_job
from dagmaster.python.local import LocalFleet
from dagmaster.python.map_reduce import map as map_chunks
from dagmaster.python.map_reduce import reduce as reduce_layers
from dagmaster.python.node_plans import Planner
from dagmaster.python.sync import apply_sync
from dagmaster.python.tasks import task
from dagmaster.python.workflows import workflow
from dagmaster.settings import load_settings

ran: list[tuple[str, str]] = []
events: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
async def settings(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs find the test's database through the settings."""
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    ran.clear()
    events["go"] = asyncio.Event()


async def result_of(running: Fleet, job_id: int) -> Any:
    """The value of the entry task when the job has completed."""
    await running.completed(job_id)
    return (await running.nodes(job_id))["entry"]["output"]["result"]


@pytest.fixture
async def running(dsn: str) -> AsyncIterator[Fleet]:
    async with fleet(dsn) as started:
        await started.worker(owner=await started.orchestrator())
        yield started


# A recursive crawl.

LINKS = {
    "/": ["/a", "/b"],
    "/a": ["/a/1", "/a/2", "/"],
    "/b": ["/b/1"],
    "/b/1": ["/b/1/deep"],
}


@task(retries=0)
async def crawl(page: str, seen: list[str]) -> Any:
    """Each page adds a task for each link, and one that merges the results."""
    links = [link for link in LINKS.get(page, []) if link not in seen]
    known = [*seen, page, *links]
    below = [create_task(crawl, {"page": link, "seen": known}) for link in links]
    together = create_task(joined, {"page": page, "below": below})
    await apply([*below, together])
    return together


@task
def joined(page: str, below: list[list[str]]) -> list[str]:
    return [page, *(page for pages in below for page in pages)]


async def test_a_crawl_adds_tasks_recursively_and_gathers_all_results(running):
    job = await create_job("A crawl", create_task(crawl, {"page": "/", "seen": []}))
    assert await result_of(running, job.id) == ["/", "/a", "/a/1", "/a/2", "/b", "/b/1", "/b/1/deep"]
    nodes = await running.nodes(job.id)
    assert nodes["entry.1"]["parent_node_id"] == "entry"
    assert nodes["entry.2.1.1"]["status"] == "completed"
    await running.is_clean()


# Results, groups and names.


@task
def number(n: int) -> int:
    ran.append(("number", str(n)))
    return n


@task
def total(numbers: list[int], more: int = 0) -> int:
    ran.append(("total", str(more)))
    return sum(numbers) + more


@task
async def in_groups() -> Any:
    first = Group("first", [create_task(number, {"n": n}) for n in range(5)])
    second = Group("second", [create_task(total, {"numbers": list(first.tasks()), "more": n}) for n in (10, 20)])
    last = create_task(total, {"numbers": list(second.tasks())}, name="last")
    first >> second >> last
    await apply([first, second, last])
    return last


async def test_groups_depend_on_groups_and_are_stored_with_their_dependencies(running):
    job = await create_job("groups", in_groups)
    assert await result_of(running, job.id) == 50
    assert [name for name, _ in ran] == ["number"] * 5 + ["total"] * 3
    assert (await running.nodes(job.id))["entry.last"]["output"] == {"result": 50}
    groups = await running.rows("SELECT name FROM dagapp.dag_groups WHERE job_id = %s ORDER BY name", job.id)
    assert [row["name"] for row in groups] == ["first", "second"]
    kinds = await running.rows(
        "SELECT previous_type, next_type, count(*)::int AS n FROM dagapp.dag_dependencies WHERE job_id = %s "
        "GROUP BY 1, 2 ORDER BY 1, 2",
        job.id,
    )
    assert [tuple(row.values()) for row in kinds] == [
        ("group", "group", 1),
        ("group", "task", 1),
        ("task", "task", 12),
    ]


@task
def from_a_thread() -> Any:
    parts = [create_task(number, {"n": n}) for n in range(3)]
    return apply_sync([*parts, create_task(total, {"numbers": parts})])[-1]


async def test_a_plain_function_can_add_tasks(running):
    job = await create_job("plain", from_a_thread)
    assert await result_of(running, job.id) == 3


@task(retries=0)
async def in_a_circle() -> None:
    a, b = create_task(number, {"n": 1}), create_task(number, {"n": 2})
    a >> b >> a
    await apply([a, b])


async def test_a_dependency_cycle_fails_the_task_and_adds_nothing(running):
    job = await create_job("circle", in_a_circle)
    [ended] = await running.ended(job.id)
    assert ended["status"] == "failed"
    assert "they wait for each other: number >> number >> number" in ended["error_message"]
    assert set(await running.nodes(job.id)) == {"START", "entry", "END"}


# Map and reduce.


@task
def squares(numbers: list[int]) -> list[int]:
    return [n * n for n in numbers]


@task
def add_up(values: list[Any]) -> int:
    return sum(sum(value) if isinstance(value, list) else value for value in values)


@task
async def mapped(count: int) -> Any:
    return await apply(map_chunks(squares, range(count)))


@task
async def mapped_and_reduced(count: int) -> Any:
    return await apply(reduce_layers(add_up, map_chunks(squares, range(count), chunk_size=500), fan_in=7))


@task
async def reduced(count: int) -> Any:
    return await apply(reduce_layers(add_up, list(range(count)), fan_in=100))


async def test_map_creates_a_task_per_chunk_and_concatenates_their_results(running):
    job = await create_job("map", mapped, {"count": 25_000})
    chunks = await result_of(running, job.id)
    assert [len(chunk) for chunk in chunks] == [10_000, 10_000, 5_000]
    assert [n for chunk in chunks for n in chunk] == [n * n for n in range(25_000)]


async def test_map_and_reduce_process_25_000_items_in_layers(running):
    jobs = [await create_job("both", entry, {"count": 25_000}) for entry in (mapped_and_reduced, reduced)]
    expected = [sum(n * n for n in range(25_000)), sum(range(25_000))]
    assert [await result_of(running, job.id) for job in jobs] == expected
    added = [len(await running.nodes(job.id)) - 3 for job in jobs]
    assert added[1] == 250 + 3 + 1
    assert added[0] == 50 + 1 + 8 + 2 + 1


async def test_map_and_reduce_of_an_empty_list_call_once(running):
    jobs = [await create_job("none", entry, {"count": 0}) for entry in (mapped, reduced)]
    assert [await result_of(running, job.id) for job in jobs] == [[], 0]


# Within fan-outs and with killed workers.


async def test_a_fan_out_child_that_adds_tasks_returns_their_result(running):
    nodes: dict[str, Any] = {
        "spread": FanOutNode(
            source="{{ inputs.counts }}",
            task=ChildTask(handler=reduced.handler, queue="q", params={"count": "{{ item }}"}),
            next=("gather",),
        ),
        "gather": FanInNode(next=("END",)),
    }
    definition = graph(nodes, "fan", start="spread", inputs={"counts": "array"})
    job_id = await running.submit(definition, {"counts": [3, 0, 150]})
    [job] = await running.completed(job_id)
    assert [result["result"] for result in job["result_data"]["gather"]["results"]] == [3, 0, sum(range(150))]


@task
async def adds_and_waits() -> Any:
    """The first attempt is killed after it added tasks; the second adds the same again."""
    parts = [create_task(number, {"n": n}) for n in range(3)]
    await apply(parts)
    context = find_current_task()
    if context is not None and context.retry_count == 0:
        events["go"].set()
        await asyncio.Event().wait()
    return await apply(create_task(total, {"numbers": parts}))


async def test_the_tasks_of_a_killed_worker_are_added_once(dsn):
    async with fleet(dsn) as running:
        await running.orchestrator()
        doomed = await running.worker(concurrency=1)  # It has no slot for the tasks that it adds.
        job = await create_job("killed", create_task(adds_and_waits, retries=2))
        await events["go"].wait()
        await doomed.kill()
        await running.rows("UPDATE dagapp.dag_workers SET last_heartbeat = now() - interval '1 hour'")
        await running.worker()
        assert await result_of(running, job.id) == 3
        assert sorted(await running.nodes(job.id)) == ["END", "START", "entry", *(f"entry.{n}" for n in (1, 2, 3, 4))]
        assert sorted(n for name, n in ran if name == "number") == ["0", "1", "2"]


@task(retries=2, retry_delay=0)
async def adds_groups_and_fails_once() -> Any:
    """Fails between two applies; the second depends on what the first added."""
    group = Group("outer", [Group("inner", [create_task(number, {"n": n}) for n in range(3)]), Group("empty")])
    first = create_task(number, {"n": 3})
    first >> group
    await apply([first, group])
    context = find_current_task()
    if context is not None and context.retry_count == 0:
        raise ConnectionError("gone")
    last = create_task(total, {"numbers": [first, *group.tasks()]})
    group >> last
    return await apply(last)


async def test_a_repeated_attempt_stores_its_groups_and_dependencies_once(running):
    job = await create_job("again", adds_groups_and_fails_once)
    assert await result_of(running, job.id) == 6
    groups = await running.rows("SELECT group_id, parent_group_id, name FROM dagapp.dag_groups ORDER BY name")
    assert [row["name"] for row in groups] == ["empty", "inner", "outer"]
    outer = groups[2]["group_id"]
    assert [row["parent_group_id"] for row in groups] == [outer, outer, None]
    members = await running.rows("SELECT definition FROM dagapp.dag_node_states WHERE definition IS NOT NULL")
    by_number = {row["definition"]["task"]: row["definition"].get("group") for row in members}
    assert sorted(by_number.values(), key=str) == [*[groups[1]["group_id"]] * 3, None, None]
    dependencies = await running.rows(
        "SELECT previous_id, previous_type, next_id, next_type FROM dagapp.dag_dependencies"
    )
    assert sorted((row["previous_type"], row["next_type"]) for row in dependencies) == [
        ("group", "task"),
        ("task", "group"),
        *[("task", "task")] * 4,
    ]
    known = {"task": set(by_number), "group": {row["group_id"] for row in groups}}
    for row in dependencies:
        assert row["previous_id"] in known[row["previous_type"]]
        assert row["next_id"] in known[row["next_type"]]


# Settings of the operator.


async def test_added_tasks_have_the_retries_and_the_timeout_of_the_settings(dsn, monkeypatch):
    monkeypatch.setenv("WORKER_MAX_RETRIES", "7")
    monkeypatch.setenv("WORKER_TASK_TIMEOUT", "77")
    async with fleet(dsn) as running:
        owner = await running.orchestrator(rules=rules_of(load_settings()))
        await running.worker(owner=owner)
        job = await create_job("defaults", in_groups)
        await running.completed(job.id)
        nodes = await running.nodes(job.id)
        tasks = [node for name, node in nodes.items() if node["definition"] and node["definition"]["type"] == "task"]
        assert len(tasks) == 8
        assert {(task["max_retries"], task["definition"]["timeout_seconds"]) for task in tasks} == {(7, 77)}
        assert nodes["entry"]["max_retries"] == 7


# The loop.


async def test_many_tasks_are_planned_outside_the_event_loop(running, monkeypatch):
    threads = []
    plan = Planner.plan

    def noted(planner: Planner) -> Any:
        threads.append(threading.current_thread())
        return plan(planner)

    monkeypatch.setattr(Planner, "plan", noted)
    job = await create_job("open", waits)
    few, many = ([create_task(number, {"n": n}) for n in range(size)] for size in (10, 1000))
    await apply(few, job.id)
    await apply(many, job.id)
    events["go"].set()
    await running.completed(job.id)
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


# In one process.


@task
async def adds_heavy_ones() -> Any:
    return await apply(map_chunks(heavy_sum, range(5), 2))


@task(queue="nobody-takes-it")
def heavy_sum(numbers: list[int]) -> int:
    return sum(numbers)


@workflow
def with_heavy_ones() -> Any:
    return adds_heavy_ones()


async def test_tasks_added_by_a_local_job_stay_in_its_process(dsn):
    try:
        assert await with_heavy_ones.run_async() == [1, 5, 4]
    finally:
        await asyncio.to_thread(LocalFleet.close_shared)


# From outside.


@task
async def waits() -> str:
    await events["go"].wait()
    return "done"


async def test_a_program_can_add_tasks_to_a_running_job(running):
    job = await create_job("open", waits)
    first = await add_task_to_job(job.id, number, {"n": 4})
    parts = Group("parts", [create_task(number, {"n": n}) for n in range(3)])
    last = create_task(total, {"numbers": [first, *parts.tasks()]})
    parts >> last
    assert await apply([parts, last], job.id) == [parts, last]
    assert (last.job_id, last.node_id) == (job.id, f"added.{last.id}")
    events["go"].set()
    await running.completed(job.id)
    assert (await running.nodes(job.id))[last.node_id]["output"] == {"result": 7}
    with pytest.raises(JobEnded, match="no nodes can be added"):
        await add_task_to_job(job.id, number, {"n": 4})


async def test_apply_outside_a_task_needs_a_job(dsn):
    with pytest.raises(Exception, match="needs a job_id"):
        await apply(create_task(number, {"n": 1}))
    with pytest.raises(Invalid, match="cannot have dependencies"):
        await create_job("x", create_task(number, {"n": create_task(number, {"n": 1})}))


# Random graphs.


@task
async def step(label: str) -> None:
    ran.append(("began", label))
    await asyncio.sleep(0)
    ran.append(("ended", label))


@task
async def random_graph(seed: int) -> None:
    await apply([item for item in a_graph(random.Random(seed)) if item.group is None])


def a_graph(rng: random.Random) -> list[Item]:
    """Nested groups and tasks; edges lead from earlier to later items, never within one."""
    items: list[Item] = []
    for place in range(rng.randint(2, 7)):
        items.append(_an_item(rng, f"{place}", depth=2))
    for place, item in enumerate(items):
        for earlier in items[:place]:
            if rng.random() < 0.35:
                rng.choice(list(within([earlier]))) >> rng.choice(list(within([item])))
    return [member for item in items for member in within([item])]


def _an_item(rng: random.Random, label: str, depth: int) -> Item:
    if depth and rng.random() < 0.5:
        inner = [_an_item(rng, f"{label}.{n}", depth - 1) for n in range(rng.randint(1, 3))]
        return Group(f"g{label}", inner)
    return create_task(step, {"label": label})


def pairs(items: list[Item]) -> Iterator[tuple[str, str]]:
    """For each item, the items that must end before it starts, by the documented rules of `>>` and groups."""
    for item in items:
        for previous in item.previous:
            for before in _labels(previous):
                for after in _labels(item):
                    yield before, after


def _labels(item: Item) -> list[str]:
    return [member.kwargs["label"] for member in within([item]) if isinstance(member, Task)]


async def test_random_graphs_run_in_dependency_order(running):
    for seed in range(12):
        ran.clear()
        job = await create_job("random", random_graph, {"seed": seed})
        await running.completed(job.id)
        items = a_graph(random.Random(seed))
        assert sorted(label for kind, label in ran if kind == "ended") == sorted(
            item.kwargs["label"] for item in items if isinstance(item, Task)
        ), f"seed {seed}"
        late = [pair for pair in pairs(items) if ran.index(("ended", pair[0])) > ran.index(("began", pair[1]))]
        assert not late, f"seed {seed}"
