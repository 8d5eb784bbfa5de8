"""Create tasks and add them to a job, from inside or outside."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from dagmaster.authoring.implicit import default_queue
from dagmaster.data.current import find_tables
from dagmaster.errors import Conflict, UnknownHandler
from dagmaster.handlers import HandlerContext, registry
from dagmaster.handlers.current import find_current_task
from dagmaster.ids import JobId
from dagmaster.python.context import find_context, session
from dagmaster.python.entrypoints import entry_point
from dagmaster.python.graphs import Item, Task, within
from dagmaster.python.node_plans import Numbers, Plan, Planner
from dagmaster.python.options import retry_of
from dagmaster.python.signatures import Signature
from dagmaster.python.tasks import TaskFunction
from dagmaster.settings import load_settings
from dagmaster.snowflakes import new_id
from dagmaster.store.dynamic_nodes import add_to_job, until_added
from dagmaster.store.queues import is_local

Callback = str | Callable[..., Any]
Applied = TypeVar("Applied", bound="Item | Sequence[Item]")

ACTOR = "python"
WITHIN_SECONDS = 3.0
# As many as can be planned within a few milliseconds; more would block the loop and its heartbeats.
PLANNED_AT_ONCE = 250

_numbers: WeakKeyDictionary[HandlerContext, Numbers] = WeakKeyDictionary()


def create_task(
    callback: Callback,
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    queue: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
) -> Task:
    """A call of the callback that a worker makes once it is applied. Tasks among the arguments are replaced by results.

    `name` gives the node a readable id. Options default to those of the callback's `@task`.
    """
    handler = entry_point(callback)
    known = _options_of(callback, handler)
    arguments = dict(kwargs or {})
    if not isinstance(callback, str):  # Workers may have another function of that name.
        signature = callback.signature if isinstance(callback, TaskFunction) else _signature_of(callback)
        signature.check_names(arguments)  # Raises TypeError, as a call would.
    return Task(
        handler,
        arguments,
        name=name,
        queue=queue or known.get("queue"),
        timeout_seconds=timeout or known.get("timeout_seconds"),
        retry=retry_of(retries, None, known.get("retry")),
    )


@lru_cache(maxsize=1024)
def _signature_of(function: Callable[..., Any]) -> Signature:
    """Cached: thousands of tasks may call the same function."""
    return Signature(function)


def _options_of(callback: Callback, handler: str) -> dict[str, Any]:
    chosen: Any = callback.chosen if isinstance(callback, TaskFunction) else None
    if chosen is None:
        try:
            chosen = registry.get(handler)
        except UnknownHandler:
            return {}
    return {"queue": chosen.queue, "timeout_seconds": chosen.timeout_seconds, "retry": chosen.retry}


async def apply(items: Applied, job_id: int | None = None) -> Applied:
    """Add all items, or none, to the job `job_id`, or by default to that of the open OrchContext or the running task.

    They are stored when it returns. Raises Invalid for cycles and for items that wait for one that is not applied.
    """
    listed = [items] if isinstance(items, Item) else list(items)
    task, context = find_current_task(), find_context()
    if job_id is None and context is not None:
        job_id = context.job_id
    if task is not None and job_id in (None, task.job_id):
        numbers = _numbers.setdefault(task, Numbers())
        runs_alone = is_local(task.queue)
        if runs_alone:
            _check_known(listed)
        # Without contracts, the node runs on the queue of the task that adds it, not on the handler's.
        queue_of: Callable[[Task], str | None] = (lambda _: None) if runs_alone else (lambda added: added.queue)
        plan, slices = await _planned(Planner(listed, task.job_id, task.node_id, numbers, queue_of))
        if (tables := find_tables()) is not None:
            await tables.keep_passed()
        await task.add(slices)
    else:
        if job_id is None:
            raise Conflict("apply() needs a job_id here: no task is running whose job it could be")
        queue = default_queue(load_settings())
        numbers = Numbers(applied=iter(new_id, None))  # New ids: no attempt repeats these items.
        plan, slices = await _planned(Planner(listed, job_id, None, numbers, lambda task: task.queue or queue))
        async with session() as conn:
            node_ids = await add_to_job(conn, JobId(job_id), slices, actor=ACTOR)
            # Wait briefly until the job's owner has added them, so that other items can refer to them.
            await until_added(conn, JobId(job_id), node_ids[-1:], seconds=WITHIN_SECONDS)
    plan.settle()
    return items


async def _planned(planner: Planner) -> tuple[Plan, list[bytes]]:
    def plan() -> tuple[Plan, list[bytes]]:
        added = planner.plan()
        return added, added.encode()

    return plan() if len(planner) <= PLANNED_AT_ONCE else await asyncio.to_thread(plan)


def _check_known(items: Sequence[Item]) -> None:
    """Raises UnknownHandler in a job that only this process runs: no other worker could execute it."""
    for name in {item.handler for item in within(items) if isinstance(item, Task)}:
        registry.get(name)
