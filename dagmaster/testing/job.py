"""A job under test: a whole workflow on a real database, with the real engine, in this process."""

import asyncio
import atexit
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Self

from dagmaster.authoring.implicit import QueueRules, own_queue
from dagmaster.errors import Conflict, DagmasterError, UnknownNode
from dagmaster.fleet import Fleet
from dagmaster.handlers.futures import has_running_loop
from dagmaster.ids import JobId, NodeId
from dagmaster.model.problems import did_you_mean
from dagmaster.model.states import JOB_TERMINAL, NODE_TERMINAL, JobStatus, NodeStatus
from dagmaster.python.records import JobOutcome
from dagmaster.python.workflows import WorkflowFunction
from dagmaster.store.connect import Connection, opened
from dagmaster.store.explanations import explain_job
from dagmaster.store.jobs import job_status
from dagmaster.store.nodes import get_node_head
from dagmaster.tasklogs.factory import open_task_logs
from dagmaster.testing.clock import TravelClock
from dagmaster.testing.databases import Databases
from dagmaster.testing.decisions import APPLICATION
from dagmaster.testing.definitions import find_called, read_definition
from dagmaster.testing.handler_calls import HandlerSource, gather_handlers
from dagmaster.testing.records import Attempt, Event, NodeRecord, Record, attempts_of, read_record
from dagmaster.testing.script import Script
from dagmaster.testing.stage import Stage, stage_settings

RUN_SECONDS = 30.0
FIRST_POLL_SECONDS = 0.005
POLL_SECONDS = 0.05


class JobNotEnded(DagmasterError):
    """The job has not ended in time."""


class JobUnderTest(Script):
    """Declare faults, run the job, and inspect its outcome.

    `workflow` is a file, a YAML string, or a Python workflow. `handlers` are modules, files or functions;
    imported handlers need not be listed. `folders` are searched for files after the current folder. Further
    arguments are settings.
    """

    def __init__(
        self,
        dsn: str,
        workflow: Any,
        inputs: Mapping[str, Any] | None = None,
        *,
        log_dir: Path,
        handlers: Sequence[HandlerSource] = (),
        clock: TravelClock | None = None,
        folders: Sequence[Path] = (),
        **settings: Any,
    ) -> None:
        chosen = stage_settings(dsn, log_dir, settings)
        specs = (*chosen.handlers, *(str(source) for source in handlers if isinstance(source, str | Path)))
        sources = [source for source in handlers if not isinstance(source, str | Path)]
        known = gather_handlers(specs, chosen.task_modules, sources)
        # Handlers may still be replaced; all other problems are reported at once.
        draft = read_definition(workflow, QueueRules(None, own_queue(chosen)), folders)
        super().__init__(draft, Stage(dsn, chosen, clock or TravelClock(), known, specs))
        self._source, self._folders, self._inputs = workflow, folders, dict(inputs or {})
        if isinstance(workflow, WorkflowFunction):
            self._inputs = workflow.inputs(**self._inputs)
        self._job_id: JobId | None = None
        self._fleet: Fleet | None = None
        self._record: Record | None = None

    def __repr__(self) -> str:
        if self._record is None:
            return f"<a job of {self._draft.workflow_id}, not run>"
        nodes = ", ".join(f"{node.node_id} {node.status}" for node in self.nodes.values())
        error = f": {self.error}" if self.error else ""
        return f"<job {self.job_id} of {self._draft.workflow_id}, {self.status}{error}; {nodes}>"

    # Running it.

    def run(self, timeout: float = RUN_SECONDS) -> Self:
        """Run the job to its end, successful or not; raises JobNotEnded after `timeout` seconds."""
        if has_running_loop():
            raise Conflict("run() cannot be called in a running event loop; use `await job.arun()`")
        return asyncio.run(self.arun(timeout))

    async def arun(self, timeout: float = RUN_SECONDS) -> Self:
        async with self.started():
            await self.ended(timeout)
        return self

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Self]:
        """Run the job within the block, which may advance the clock and await nodes. The job may stay unfinished."""
        rules = QueueRules(self._stage.registry().queues(), own_queue(self._stage.settings))
        workflow = read_definition(self._source, rules, self._folders)
        find = find_called(self._source, rules, self._folders, self._stage.settings.workflows_dir)
        async with self._stage.running(workflow, self._inputs, find) as (running, job_id):
            self._fleet, self._job_id = running, job_id
            try:
                yield self
            finally:
                self._fleet = None
                async with opened(self._stage.dsn, application=APPLICATION) as conn:
                    self._record = await read_record(conn, job_id)

    async def ended(self, timeout: float = RUN_SECONDS) -> None:
        async def look(conn: Connection) -> bool:
            [job] = await job_status(conn, [self.job_id])
            return job["status"] in JOB_TERMINAL

        await self._wait_until(look, timeout, "has not ended")

    async def until(self, node: str, status: str, timeout: float = RUN_SECONDS) -> None:
        """Wait until the node has this status, or has passed it."""
        expected = NodeStatus(status)

        async def look(conn: Connection) -> bool:
            now = (await get_node_head(conn, self.job_id, NodeId(node)))["status"]
            return now == expected or now in NODE_TERMINAL

        await self._wait_until(look, timeout, f"has no {status} node {node!r}")

    async def _wait_until(self, look: Callable[[Connection], Any], timeout: float, complaint: str) -> None:
        running, deadline, pause = self._fleet, monotonic() + timeout, FIRST_POLL_SECONDS
        if running is None:
            raise Conflict("the job is not running; wait for it inside `async with job.started():`")
        async with opened(self._stage.dsn, application=APPLICATION) as conn:
            while not await look(conn):
                if running.ended.done():
                    await running.ended
                if monotonic() > deadline:
                    threshold = self._stage.settings.orphan_threshold_seconds
                    why = await explain_job(conn, self.job_id, threshold_seconds=threshold)
                    raise JobNotEnded(f"after {timeout:g} s the job {complaint}: {why.sentence}")
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, POLL_SECONDS)

    # The outcome.

    @property
    def job_id(self) -> JobId:
        if self._job_id is None:
            raise Conflict("the job has not run yet; call run()")
        return self._job_id

    @property
    def _known(self) -> Record:
        if self._record is None:
            raise Conflict("the job has not run yet or is still running; call run()")
        return self._record

    @property
    def status(self) -> str:
        return str(self._known.job["status"])

    @property
    def error(self) -> str | None:
        error: str | None = self._known.job["error_message"]
        return error

    @property
    def result(self) -> Any:
        """The outputs by node, or the return value of a workflow function; None unless the job completed."""
        job = self._known.job
        if self.status != JobStatus.COMPLETED or not isinstance(self._source, WorkflowFunction):
            return job["result_data"]
        outcome = JobOutcome(self.job_id, JobStatus.COMPLETED, None, job["result_data"], job["input_params"])
        return self._source.result_of(outcome)

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        return self._known.nodes

    @property
    def timeline(self) -> list[Event]:
        return self._known.timeline

    def attempts(self, node: str) -> list[Attempt]:
        if node not in self.nodes:
            raise UnknownNode(f"the job has no node {node!r}{did_you_mean(node, self.nodes)}")
        return attempts_of(self.timeline, node)

    def log(self, node: str, *, attempt: int | None = None) -> str:
        """The log of the attempt, by default the last one."""
        number = attempt or len(self.attempts(node))
        path = Path(open_task_logs(self._stage.settings).path_of(f"{self.job_id}_{node}_{number - 1}"))
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


@cache
def _databases() -> Databases:
    """One server for the process, until it exits."""
    databases = Databases()
    atexit.register(databases.close)
    return databases


@contextmanager
def job_under_test(workflow: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> Iterator[JobUnderTest]:
    """A job on a temporary database, without pytest; the options are those of JobUnderTest."""
    with _databases().fresh() as dsn, TemporaryDirectory(prefix="dagmaster-logs-") as folder:
        yield JobUnderTest(dsn, workflow, inputs, **{"log_dir": Path(folder), **options})


def run_workflow(
    workflow: Any, inputs: Mapping[str, Any] | None = None, *, timeout: float = RUN_SECONDS, **options: Any
) -> JobUnderTest:
    """Run a job to its end."""
    with job_under_test(workflow, inputs, **options) as job:
        return job.run(timeout)
