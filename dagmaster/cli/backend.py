"""Where the commands find jobs: in the database, or at a server over HTTP."""

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
    """One job with its nodes, its progress, and its tasks that no worker would take.

    `order` are the nodes of its graph as one leads to the next; `value` is what a workflow function has returned.
    """

    job: Row
    nodes: Sequence[Row]
    outlook: Outlook
    unserved: Sequence[Row] = ()
    order: Sequence[str] = ()
    value: Any = None


@dataclass(frozen=True, slots=True)
class WorkflowLine:
    """A workflow in a list; optional inputs end with a question mark."""

    workflow_id: str
    version: int
    nodes: int
    inputs: Sequence[str]
    source: str
    is_active: bool
    record: Row


def line_of(record: Row, required: Collection[str]) -> WorkflowLine:
    """From a record as it is printed for programs."""
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
        """Have the service do it, on behalf of `actor`."""

    def call_assets(
        self,
        verb: "Callable[[AssetService], Coroutine[Any, Any, T]]",
        *,
        actor: str | None = None,
        runs_workflows: bool = False,
    ) -> T:
        """The same of the service of assets; `runs_workflows` if the verb may start jobs."""

    def submit(self, arguments: SubmitArguments, show: "Callable[[SubmitResult], Show | None]") -> JobView | None:
        """`show` receives the result; it returns how to show the job if the command waits for its end."""

    def jobs(self, *, status: str | None, workflow_id: str | None, limit: int) -> Sequence[Row]: ...

    def job_ids(self, prefix: str, *, limit: int) -> Sequence[JobId]:
        """The ids of jobs that begin with these digits."""

    def job(self, job_id: JobId, *, children: bool) -> JobDetails: ...

    def events(
        self, job_id: JobId, node: str | None, types: Sequence[str], each: Callable[[Row], None], *, follow: bool
    ) -> None: ...

    def logged(self, job_id: JobId, *, limit: int) -> Sequence[Row]:
        """Nodes that may have a log: what failed first, then what runs."""

    def logs(self, job_id: JobId, node: str, selection: "LogSelection", each: Callable[[str], None]) -> None:
        """Piece by piece; raises NotFound when there is none."""

    def explain(self, job_id: JobId, node: str | None) -> "Explanation": ...

    def orchestrators(self) -> Sequence[Row]: ...

    def workers(self) -> Sequence[Row]: ...

    def handlers(self) -> Sequence[Row]:
        """Those that workers have registered."""

    def queues(self) -> Sequence[Row]: ...

    def schedules(self) -> Sequence[Row]: ...

    def sync_schedules(self, handlers: Sequence[str], *, prune: bool, actor: str | None) -> Row:
        """Which were added, changed and removed."""

    def workflows(self, handlers: Sequence[str]) -> tuple[Sequence[WorkflowLine], Sequence[Row]]:
        """And the problems of files that were not loaded."""


def backend_of(ctx: typer.Context, settings: "Settings") -> Backend:
    """Until the command has ended. Only the one that is used is imported: psycopg, or httpx."""
    if settings.url:
        from dagmaster.cli import remote

        return ctx.with_resource(remote.opened(settings))
    from dagmaster.cli import local

    return ctx.with_resource(local.opened(settings))
