"""The interface of the commands to jobs: in the database, or on a server over HTTP."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

from dagmaster.cli.progress import JobView, Outlook, Show
from dagmaster.ids import JobId

if TYPE_CHECKING:  # `--help` must not wait for these imports.
    from dagmaster.explain.facts import Explanation
    from dagmaster.service.asset_contract import AssetService
    from dagmaster.service.contract import Service, SubmitResult
    from dagmaster.settings import Settings
    from dagmaster.tasklogs.reader import LogSelection

T = TypeVar("T")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SubmitArguments:
    """A submission from the command line; `options` are those of a SubmitRequest."""

    workflow: str
    pairs: Sequence[str] = ()
    documents: Sequence[str | None] = ()
    handlers: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobDetails:
    """One job with its nodes, its progress, and its tasks that no running worker accepts.

    `order` lists the nodes in graph order; `value` is the return value of a workflow function.
    """

    job: Row
    nodes: Sequence[Row]
    outlook: Outlook
    unserved: Sequence[Row] = ()
    order: Sequence[str] = ()
    value: Any = None


@dataclass(frozen=True, slots=True)
class WorkflowLine:
    """A workflow in a list; optional inputs end with a work mark."""

    workflow_id: str
    version: int
    nodes: int
    inputs: Sequence[str]
    source: str
    is_active: bool
    record: Row


def line_of(record: Row, required: Collection[str]) -> WorkflowLine:
    """From a record in the format of `--json`."""
    return WorkflowLine(
        record["workflow_id"],
        record["version"],
        record["nodes"],
        [name if name in required else f"{name}?" for name in record["inputs"]],
        record["file"],
        record["is_active"],
        record,
    )


class Backend(Protocol):
    def call(self, verb: "Callable[[Service], Coroutine[Any, Any, T]]", *, actor: str | None = None) -> T:
        """Call the service on behalf of `actor`."""

    def call_assets(
        self,
        verb: "Callable[[AssetService], Coroutine[Any, Any, T]]",
        *,
        actor: str | None = None,
        runs_workflows: bool = False,
    ) -> T:
        """Call the asset service; `runs_workflows` if the verb may start jobs."""

    def submit(self, arguments: SubmitArguments, show: "Callable[[SubmitResult], Show | None]") -> JobView | None:
        """`show` receives the result. If the command waits for the job, `show` returns a function that displays it."""

    def jobs(self, *, status: str | None, workflow_id: str | None, limit: int) -> Sequence[Row]: ...

    def job_ids(self, prefix: str, *, limit: int) -> Sequence[JobId]:
        """The ids of jobs that start with these digits."""

    def job(self, job_id: JobId, *, children: bool) -> JobDetails: ...

    def events(
        self, job_id: JobId, node: str | None, types: Sequence[str], each: Callable[[Row], None], *, follow: bool
    ) -> None: ...

    def logged(self, job_id: JobId, *, limit: int) -> Sequence[Row]:
        """Nodes that may have a log: failed nodes first, then running ones."""

    def logs(self, job_id: JobId, node: str, selection: "LogSelection", each: Callable[[str], None]) -> None:
        """Passes the log to `each` in pieces; raises NotFound if there is none."""

    def explain(self, job_id: JobId, node: str | None) -> "Explanation": ...

    def orchestrators(self) -> Sequence[Row]: ...

    def workers(self) -> Sequence[Row]: ...

    def handlers(self) -> Sequence[Row]:
        """The handlers that workers have registered."""

    def queues(self) -> Sequence[Row]: ...

    def schedules(self) -> Sequence[Row]: ...

    def sync_schedules(self, handlers: Sequence[str], *, prune: bool, actor: str | None) -> Row:
        """The added, changed and removed schedules."""

    def workflows(self, handlers: Sequence[str]) -> tuple[Sequence[WorkflowLine], Sequence[Row]]:
        """The workflows, and the problems of files that were not loaded."""


def backend_of(ctx: typer.Context, settings: "Settings") -> Backend:
    """The backend of the settings, open until the command ends. Imports psycopg or httpx, not both."""
    if settings.url:
        from dagmaster.cli import remote

        return ctx.with_resource(remote.opened(settings))
    from dagmaster.cli import local

    return ctx.with_resource(local.opened(settings))
