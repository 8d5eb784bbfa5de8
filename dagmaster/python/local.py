"""An orchestrator and a worker in a thread, on the database of the settings, for programs and tests."""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from dagmaster.authoring.implicit import QueueRules
from dagmaster.authoring.preparation import queues_of, tasks_of
from dagmaster.engine.messages import Cancel
from dagmaster.errors import Invalid
from dagmaster.fleet import Fleet, fleet, worker_options
from dagmaster.handlers import load_handlers, registry
from dagmaster.handlers.loader import need_loaded
from dagmaster.ids import JobId
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.retry import OnOom, RetryPolicy
from dagmaster.model.states import JOB_TERMINAL
from dagmaster.model.workflow import FanOutNode, Node, TaskNode, Workflow
from dagmaster.python.background import Background
from dagmaster.python.entrypoints import allow_modules
from dagmaster.python.job_end import outcome_of, until_ended
from dagmaster.python.records import JobOutcome
from dagmaster.python.submission import NOTHING, Workflows, definitions_of
from dagmaster.python.workflows import WorkflowFunction
from dagmaster.service.context import ServiceContext, read_fleet
from dagmaster.service.submission import new_job, store_job
from dagmaster.settings import Settings, load_settings
from dagmaster.store.connect import Connection, opened
from dagmaster.store.databases import database
from dagmaster.store.jobs import get_job
from dagmaster.store.mail_codec import encode
from dagmaster.store.mailbox import add_mail
from dagmaster.store.queues import new_local_queue
from dagmaster.store.workflows import load_definitions

STOP_SECONDS = 3.0


@dataclass(slots=True, eq=False)
class _Crew:
    """An orchestrator and a worker, with the handlers and queues known at their start."""

    running: Fleet
    handlers: frozenset[str]
    queues: frozenset[str]
    stack: AsyncExitStack
    jobs: int = 0


class LocalFleet:
    """Started with the first job and kept for the next ones. Its jobs are run by no other process.

    `shared()` lives as long as the process; other instances are closed by their creators.
    """

    _shared: ClassVar[dict[tuple[str, int], "LocalFleet"]] = {}
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or load_settings()
        self.queue = new_local_queue()
        self._dsn = ""
        self._background: Background | None = None
        self._starting = threading.Lock()
        self._crew: _Crew | None = None
        self._changing = asyncio.Lock()

    @classmethod
    def shared(cls) -> "LocalFleet":
        need_loaded()
        settings = load_settings()
        # A forked child lacks the thread and the connections of its parent.
        place = settings.database_dsn() or str(settings.data_dir.resolve()), os.getpid()
        with cls._sharing:
            if place not in cls._shared:
                cls._shared[place] = cls(settings)
            return cls._shared[place]

    @classmethod
    def close_shared(cls) -> None:
        with cls._sharing:
            while cls._shared:
                (_, pid), local_fleet = cls._shared.popitem()
                if pid == os.getpid():
                    local_fleet.close()

    def run(
        self,
        workflow: Workflow,
        inputs: Mapping[str, Any],
        *,
        called: Workflows = NOTHING,
        timeout: float | None = None,
    ) -> JobOutcome:
        """Run a job to its end, successful or not. Raises TimeoutError after `timeout` seconds and cancels the job.

        `called` are the workflows that it calls, by id; others are loaded from the folder of workflows.
        """
        return _awaited(self._call(self._run(workflow, inputs, called, timeout)))

    async def run_async(
        self,
        workflow: Workflow,
        inputs: Mapping[str, Any],
        *,
        called: Workflows = NOTHING,
        timeout: float | None = None,
    ) -> JobOutcome:
        started = await asyncio.to_thread(self._call, self._run(workflow, inputs, called, timeout))
        return await asyncio.wrap_future(started)

    def finish(self, job_id: int, *, timeout: float | None = None) -> JobOutcome:
        """Run a job that is already submitted to its end."""
        return _awaited(self._call(self._finish(JobId(job_id), timeout)))

    def close(self) -> None:
        """Stop the fleet; running tasks are given back."""
        with self._starting:
            background, self._background = self._background, None
            if background is not None and background.is_alive:
                background.call(self._stop(self._crew)).result()
                background.close()
            self._crew = None

    def _call(self, work: Coroutine[Any, Any, JobOutcome]) -> Future[JobOutcome]:
        try:
            background = self._ensure_started()
        except BaseException:
            work.close()  # It is never awaited.
            raise
        return background.call(work)

    def _ensure_started(self) -> Background:
        with self._starting:
            if self._background is None or not self._background.is_alive:
                self._crew, self._changing = None, asyncio.Lock()
                load_handlers(self.settings.handlers)
                allow_modules(self.settings.task_modules)
                background = Background(lambda: database(self.settings), "dagmaster-local")
                self._dsn = background.start()
                self._background = background
            return self._background

    # In the loop of the thread.

    async def _run(
        self, workflow: Workflow, inputs: Mapping[str, Any], called: Workflows, timeout: float | None
    ) -> JobOutcome:
        rules = QueueRules(registry.queues(), self.queue)
        here = {name: _bind_to_queue(callee, self.queue, rules) for name, callee in called.items()}
        bound = _bind_to_queue(workflow, self.queue, rules)
        definitions = definitions_of(bound, here, self.settings, rules, registry.contracts())
        job = new_job(definitions.graph_of(bound), inputs, self.settings)
        async with (
            self._running({self.queue}) as running,
            opened(self._dsn, application="dagmaster local") as conn,
        ):
            assert running.orchestrator is not None
            owner_id = running.orchestrator.me.instance_id
            context = ServiceContext(conn, self.settings, owner_id=owner_id, wake=running.wake)
            submitted = await store_job(context, job)
            return await self._ended(conn, submitted.job_id, running, timeout)

    async def _finish(self, job_id: JobId, timeout: float | None) -> JobOutcome:
        async with opened(self._dsn, application="dagmaster local") as conn:
            row = await get_job(conn, job_id)
            if row["status"] in JOB_TERMINAL:
                return await outcome_of(conn, job_id, self.settings)
            [definition] = (await load_definitions(conn, [row["workflow_hash"]])).values()
            workflow = Workflow.model_validate(definition)
            async with self._running(queues_of(workflow)) as running:
                await _check_taken(conn, workflow, self.settings)
                running.wake()
                return await self._ended(conn, job_id, running, timeout)

    async def _ended(self, conn: Connection, job_id: JobId, running: Fleet, timeout: float | None) -> JobOutcome:
        try:
            async with asyncio.timeout(timeout):
                await until_ended(conn, job_id, running)
        except (TimeoutError, asyncio.CancelledError):
            # No caller waits for it, and no other worker takes its tasks.
            await add_mail(conn, [encode(job_id, Cancel("local run"))])
            running.wake()
            raise
        return await outcome_of(conn, job_id, self.settings)

    @asynccontextmanager
    async def _running(self, queues: Iterable[str]) -> AsyncIterator[Fleet]:
        crew = await self._fleet_for(frozenset(queues))
        try:
            yield crew.running
        finally:
            crew.jobs -= 1
            if crew is not self._crew and crew.jobs == 0:
                await self._stop(crew)

    async def _fleet_for(self, queues: frozenset[str]) -> _Crew:
        """The crew for these queues: a new one if tasks were defined since the last job, while the old one finishes."""
        async with self._changing:
            handlers, old = frozenset(registry.spellings()), self._crew
            if old is None or not (handlers <= old.handlers and queues <= old.queues) or old.running.ended.done():
                self._crew = await self._start(handlers, queues | (old.queues if old else {self.queue}))
                if old is not None and old.jobs == 0:
                    await self._stop(old)
            assert self._crew is not None
            self._crew.jobs += 1
            return self._crew

    async def _start(self, handlers: frozenset[str], queues: frozenset[str]) -> _Crew:
        stack = AsyncExitStack()
        work = worker_options(self.settings, sorted(queues), None, grace_seconds=STOP_SECONDS)
        running = await stack.enter_async_context(
            fleet(self._dsn, self.settings, orchestrate=True, work=work, registry=registry)
        )
        return _Crew(running, handlers, queues, stack)

    async def _stop(self, crew: _Crew | None) -> None:
        if crew is not None:
            await crew.stack.aclose()


# Before thread pools are closed: a fleet needs its threads to stop.
getattr(threading, "_register_atexit", atexit.register)(LocalFleet.close_shared)


def run_job_test(job: Any, /, *args: Any, timeout: float | None = None, **inputs: Any) -> JobOutcome:
    """Run a job from `create_job`, a job id or a new job of a workflow function; returns its outcome.

    A failed job raises no error: check `status` or call `need_completed()`.
    """
    if isinstance(job, WorkflowFunction):
        job_inputs = job.inputs(*args, **inputs)
        return LocalFleet.shared().run(job.workflow, job_inputs, called=job.written.called, timeout=timeout)
    return LocalFleet.shared().finish(_id_of(job), timeout=timeout)


def _id_of(job: Any) -> int:
    job_id = getattr(job, "id", job)
    if isinstance(job_id, int | str) and str(job_id).isdecimal():
        return int(job_id)
    raise Invalid(f"expected a job from create_job(), a job id or a workflow function, not {job!r}")


def _awaited(future: Future[JobOutcome]) -> JobOutcome:
    try:
        return future.result()
    except BaseException:  # Ctrl-C too: the job ends with its caller.
        future.cancel()
        raise


async def _check_taken(conn: Connection, workflow: Workflow, settings: Settings) -> None:
    """Raises UnknownHandler for a task that neither this process nor another worker can run."""
    known = await read_fleet(conn, threshold_seconds=settings.orphan_threshold_seconds)
    for queue, handler in sorted(tasks_of(workflow)):
        if not known.takes(queue, handler):
            registry.get(handler)


def _bind_to_queue(workflow: Workflow, queue: str, rules: QueueRules) -> Workflow:
    """The workflow with all its tasks on this queue.

    Raises InvalidWorkflow when it uses a handler that this process lacks: the job would wait for it forever.
    """
    nodes = {name: _on_queue(node, queue) for name, node in workflow.nodes.items()}
    bound = workflow.model_copy(update={"nodes": nodes})
    problems = [problem for problem in rules.find_problems(bound) if problem.is_error]
    if problems:
        raise InvalidWorkflow(problems)
    return bound


def _on_queue(node: Node, queue: str) -> Node:
    match node:
        case TaskNode():
            return node.model_copy(update={"queue": queue, "retry": _retry(node.retry, queue)})
        case FanOutNode():
            child = node.task.model_copy(update={"queue": queue, "retry": _retry(node.task.retry, queue)})
            return node.model_copy(update={"task": child, "retry": _retry(node.retry, queue)})
        case _:
            return node


def _retry(policy: RetryPolicy | None, queue: str) -> RetryPolicy | None:
    return policy.model_copy(update={"on_oom": OnOom(queue=queue)}) if policy and policy.on_oom else policy
