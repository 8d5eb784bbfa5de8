"""The jobs API of Python programs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from fleet import Fleet, fleet, handlers

import dagmaster
from dagmaster import errors, sync
from dagmaster.handlers.current import find_current_task
from dagmaster.model.states import JobStatus
from dagmaster.python.apply_items import apply, create_task
from dagmaster.python.context import OrchContext, _shared, get_current_context
from dagmaster.python.graphs import Group, Task
from dagmaster.python.jobs import (
    add_task_to_job,
    cancel_job,
    create_job,
    deregister_worker,
    get_job,
    get_task,
    list_jobs,
    list_workers,
    register_worker,
    retry_failed_tasks,
    worker_heartbeat,
)
from dagmaster.python.records import TaskState, WorkerState, state_of
from dagmaster.python.runners import handler_for
from dagmaster.python.tasks import task

mood = {"fails": False}
events: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
async def settings(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    mood["fails"] = False
    events["go"] = asyncio.Event()


@pytest.fixture
async def running(dsn: str) -> AsyncIterator[Fleet]:
    async with fleet(dsn) as started:
        await started.worker(owner=await started.orchestrator())
        yield started


@task
def double(n: int) -> int:
    return 2 * n


@task(retries=0)
def moody(n: int) -> int:
    if mood["fails"]:
        raise ValueError("not today")
    return n


@task
async def patient() -> None:
    await events["go"].wait()


@task
async def adding_by_context(ctx_of: str) -> int:
    here: Any = find_current_task() if ctx_of == "task" else get_current_context()
    added = create_task(double, {"n": 4})
    return await here.apply(added)


# Jobs.


@pytest.mark.parametrize("name, hint", [("os.system", ""), ("ehco", "; did you mean 'echo'?")])
async def test_an_unknown_entry_task_is_refused_at_once(name: str, hint: str) -> None:
    with pytest.raises(errors.UnknownHandler) as refused:
        await create_job("nobody", name)
    assert f"no handler is named {name!r}, here or at any worker{hint}" in str(refused.value)


async def test_an_entry_task_known_only_to_a_worker_is_accepted(dsn: str) -> None:
    async with fleet(dsn, far_away=lambda ctx: {"by": "a worker"}) as started:
        await started.worker(owner=await started.orchestrator())
        job = await create_job("far", "far_away")
        [row] = await started.completed(job.id)
        assert row["result_data"]["entry"] == {"by": "a worker"}


async def test_a_name_known_only_to_workers_can_be_mapped(dsn: str) -> None:
    def total(chunk: list[int], add: int = 0) -> int:
        return sum(chunk) + add

    known = handlers()
    known.register(handler_for(total, "far.module:total"))
    async with fleet(dsn) as started:
        await started.worker(owner=await started.orchestrator(), known=known)
        group = dagmaster.map("far.module:total", [1, 2, 3], chunk_size=2, add=10)
        first = next(iter(group.tasks()))
        job = await create_job("mapped", first.handler, first.kwargs)
        [row] = await started.completed(job.id)
        assert row["result_data"]["entry"] == {"result": 13}


async def test_a_jobs_name_is_read_back_unchanged(running):
    job = await create_job("t root", create_task(double, {"n": 1}))
    assert [(await get_job(job.id)).name, (await list_jobs())[0].name] == ["t root", "t root"]


@pytest.mark.parametrize("ctx_of", ["task", "context"])
async def test_a_task_adds_tasks_through_its_context(running, ctx_of):
    job = await create_job("adding", create_task(adding_by_context, {"ctx_of": ctx_of}))
    [row] = await running.completed(job.id)
    assert row["result_data"]["entry"]["result"] == 8


async def test_a_context_can_be_bound_to_a_job(running):
    job = await create_job("patient", create_task(patient))
    task = Task(entrypoint=double.handler, kwargs={"n": 5}, queue="q")
    async with OrchContext(job_id=job.id) as context:
        assert get_current_context().job_id == job.id
        assert await context.apply(task) is task
        other = await apply(create_task(double, {"n": 6}))
    events["go"].set()
    await running.completed(job.id)
    assert [(await get_task(each.id)).result for each in (task, other)] == [10, 12]


def test_a_task_has_one_handler():
    assert Task("a.b").entrypoint == Task(entrypoint="a.b").handler == "a.b"
    with pytest.raises(TypeError, match="not as both"):
        Task("a.b", entrypoint="a.c")


async def test_the_health_of_the_installation_can_be_read(running):
    health = await dagmaster.health_check()
    assert (health["status"], health["active_workers"], health["stale_tasks"]) == ("ok", 1, 0)
    assert health["database"]["status"] == "ok"


def test_the_log_folder_is_created(tmp_path, monkeypatch):
    monkeypatch.setenv("DAGMASTER_LOG_DIR", str(tmp_path / "a" / "b"))
    assert dagmaster.get_logs_dir() == tmp_path / "a" / "b"
    assert dagmaster.get_logs_dir().is_dir()


async def test_a_job_is_pending_until_an_orchestrator_runs(dsn):
    entry = create_task(double, {"n": 21})
    job = await create_job("Answer to Everything!", entry)
    assert (job.name, job.status) == ("Answer to Everything!", JobStatus.PENDING)
    assert (entry.job_id, entry.node_id) == (job.id, "entry")


async def test_a_job_starts_and_ends_with_its_entry_task(running):
    job = await create_job("answer", create_task(double, {"n": 21}))
    await running.completed(job.id)
    ended = await get_job(job.id)
    assert ended.status is JobStatus.COMPLETED
    assert ended.error is None
    # Two clocks: the database's, and the orchestrator's that follows it.
    assert ended.created_at - timedelta(seconds=1) <= ended.started_at <= ended.completed_at


async def test_template_syntax_in_arguments_is_not_evaluated(running):
    odd = {"text": "{{ inputs }} {% raw %}", "none": None, "deep": [{"a b": 1.5}], "quote'": "'"}
    job = await create_job("odd", "echo", odd)
    await running.completed(job.id)
    assert (await running.nodes(job.id))["entry"]["output"] == {"echoed_params": odd}


async def test_the_same_entry_task_returns_the_same_job(running):
    entry = create_task(double, {"n": 1})
    assert (await create_job("one", entry)).id == (await create_job("one", entry)).id
    with pytest.raises(errors.IdempotencyConflict):
        await create_job("another", entry)


async def test_a_name_must_contain_printable_characters(dsn):
    with pytest.raises(errors.Invalid, match="letters or digits"):
        await create_job("!?", double, {"n": 1})


async def test_jobs_are_listed_by_status_newest_first(running):
    done = [await create_job("done", double, {"n": n}) for n in range(3)]
    await running.completed(*(job.id for job in done))
    open_one = await create_job("open", patient)
    assert [job.id for job in await list_jobs("completed", limit=2)] == [done[2].id, done[1].id]
    assert next(job.id for job in await list_jobs()) == open_one.id
    with pytest.raises(errors.Invalid, match="is not a status"):
        await list_jobs("finished")
    events["go"].set()
    await running.completed(open_one.id)


async def test_cancelling_a_job_stops_running_tasks_and_drops_waiting_ones(running):
    job = await create_job("long", create_task(patient, retries=0))
    waiting = create_task(double, {"n": 1})
    running_one = create_task(patient)
    running_one >> waiting
    await apply([running_one, waiting], job.id)
    await running.until(
        "SELECT count(*) = 2 AS ok FROM dagapp.dag_node_states WHERE status = 'running' AND job_id = %s",
        lambda: [job.id],
    )
    assert (await cancel_job(job.id, reason="enough")).status is JobStatus.CANCELLED
    assert (await get_task(waiting.id)).status is TaskState.CANCELLED
    assert (await get_task(running_one.id)).status is TaskState.CANCELLED
    with pytest.raises(errors.JobEnded, match="is cancelled and cannot be cancelled"):
        await cancel_job(job.id)
    await running.is_clean()


async def test_failed_tasks_and_their_job_can_be_retried(running):
    mood["fails"] = True
    entry = create_task(moody, {"n": 3})
    job = await create_job("moody", entry)
    await running.ended(job.id)
    failed = await get_task(entry.id)
    assert (failed.status, failed.error) == (TaskState.FAILED, "ValueError: not today")
    with pytest.raises(errors.JobEnded, match="no nodes can be added"):
        await apply(late := create_task(double, {"n": 1}), job.id)
    assert (late.job_id, late.node_id) == (None, None), "nothing was applied"
    mood["fails"] = False
    assert (await retry_failed_tasks(job.id)).status is not JobStatus.FAILED
    await running.completed(job.id)
    again = await get_task(entry.id, job.id)
    assert (again.status, again.result, again.attempt) == (TaskState.COMPLETED, 3, 2)
    with pytest.raises(errors.JobEnded, match="only a failed job can be retried"):
        await retry_failed_tasks(job.id)


async def test_missing_jobs_and_tasks_are_named(dsn):
    with pytest.raises(errors.UnknownJob, match="there is no job 7"):
        await get_job(7)
    with pytest.raises(errors.UnknownTask, match="there is no task 8 in job 7"):
        await get_task(8, 7)
    with pytest.raises(errors.UnknownJob):
        await add_task_to_job(7, double, {"n": 1})


# Tasks.


async def test_a_task_record_has_all_fields(running):
    job = await create_job("open", patient)
    group = Group("pair", [create_task(double, {"n": 1}), create_task(double, {"n": 2})])
    sum_of = create_task("tests.unknown:function", {"values": list(group.tasks())})
    await apply([group, sum_of], job.id)
    first = next(group.tasks())
    await running.until(
        "SELECT count(*) = 2 AS ok FROM dagapp.dag_node_states WHERE status = 'completed' AND parent_node_id IS NULL "
        "AND node_id LIKE 'added.%%' AND job_id = %s",
        lambda: [job.id],
    )
    done = await get_task(first.id, job.id)
    assert (done.status, done.result, done.kwargs) == (TaskState.COMPLETED, 2, {"n": 1})
    assert (done.group_id, done.entrypoint) == (group.id, double.handler)
    assert done.worker_id == running.roles[-1].id
    waits = await get_task(sum_of.id)
    assert (waits.status, waits.entrypoint, waits.result) == (TaskState.PENDING, "tests.unknown:function", None)
    events["go"].set()
    await cancel_job(job.id)


@pytest.mark.parametrize(
    ("status", "claimed_at", "ended_by", "state"),
    [
        ("pending", None, None, TaskState.PENDING),
        ("ready", None, None, TaskState.PENDING),
        ("dispatched", None, None, TaskState.PENDING),
        ("dispatched", "now", None, TaskState.CLAIMED),
        ("running", "now", None, TaskState.RUNNING),
        ("completed", None, "result", TaskState.COMPLETED),
        ("failed", None, "failure", TaskState.FAILED),
        ("failed", None, "revoked", TaskState.CANCELLED),
        ("failed", None, "cancelled", TaskState.CANCELLED),
        ("skipped", None, "skipped", TaskState.CANCELLED),
    ],
)
async def test_node_states_map_to_task_states(status, claimed_at, ended_by, state):
    assert state_of({"status": status, "claimed_at": claimed_at, "ended_by": ended_by}) is state


# Workers.


async def test_workers_register_send_heartbeats_and_leave(running):
    mine = await register_worker("elsewhere", 4711)
    assert (mine.hostname, mine.pid, mine.status) == ("elsewhere", 4711, WorkerState.IDLE)
    await worker_heartbeat(mine.id)
    assert mine.id in [worker.id for worker in await list_workers("idle")]
    await deregister_worker(mine.id)
    assert [worker.id for worker in await list_workers("stopped")] == [mine.id]
    with pytest.raises(errors.WorkerGone, match="register again"):
        await worker_heartbeat(mine.id)
    with pytest.raises(errors.Invalid, match="is not a worker status"):
        await list_workers("lazy")


async def test_a_busy_worker_is_active(running):
    job = await create_job("open", patient)
    await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_running WHERE job_id = %s", lambda: [job.id])
    [worker] = await list_workers("active")
    assert worker.id == running.roles[-1].id
    events["go"].set()
    await running.completed(job.id)


# Contexts.


async def test_a_context_shares_one_pool(dsn):
    pools = _shared.setdefault(asyncio.get_running_loop(), {})
    async with OrchContext() as outer:
        assert get_current_context() is outer
        [shared] = pools.values()
        async with OrchContext() as inner:
            assert get_current_context() is inner
            await asyncio.gather(*(list_jobs() for _ in range(10)))
            assert list(pools.values()) == [shared]
        assert get_current_context() is outer
        assert outer.job_id is None
    assert not pools


async def test_a_context_accepts_a_url(dsn, monkeypatch):
    monkeypatch.delenv("DAGMASTER_DATABASE_URL")
    async with OrchContext(dsn):
        assert await list_jobs() == []


async def test_without_an_open_context_there_is_no_current_one(dsn):
    with pytest.raises(errors.Conflict, match="no context is open here"):
        get_current_context()


async def test_an_unreachable_database_is_reported_and_not_cached(dsn):
    async def ask() -> None:
        async with OrchContext("postgresql://postgres@127.0.0.1:1/nothing"):
            pass

    with pytest.raises(errors.DatabaseUnavailable, match="cannot be reached"):
        await ask()
    assert not _shared.get(asyncio.get_running_loop())


@task
async def bound() -> Any:
    async with OrchContext() as context:
        inside = context.job_id
    task_of = find_current_task()
    assert task_of is not None
    return [get_current_context().job_id, inside, task_of.job_id, (await get_job(task_of.job_id)).status]


async def test_inside_a_task_the_context_is_bound_to_its_job(running):
    job = await create_job("bound", bound)
    await running.completed(job.id)
    assert (await running.nodes(job.id))["entry"]["output"] == {"result": [job.id] * 3 + ["running"]}


# Without an event loop.


async def test_the_sync_functions_need_no_event_loop(running):
    def program() -> dagmaster.python.records.JobInfo:
        job = sync.create_job("sync", double, {"n": 4})
        assert [job.id for job in sync.list_jobs()] == [job.id]
        return sync.get_job(job.id)

    job = await asyncio.to_thread(program)
    await running.completed(job.id)


async def test_the_sync_functions_refuse_to_block_an_event_loop(dsn):
    with pytest.raises(errors.Conflict, match=r"use `await dagmaster.list_jobs\(\.\.\.\)`"):
        sync.list_jobs()


async def test_every_function_of_the_api_has_a_public_sync_variant():
    for name in sync.__all__:
        assert name in dagmaster.__all__
        assert callable(getattr(sync, name))
    assert dagmaster.apply is apply
    assert dagmaster.apply_sync is sync.apply
