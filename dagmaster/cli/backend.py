"""The interface of the commands to jobs: in the database, or on a server over HTTP."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

from dagmaster.cli.progress import JobView, Outlook, Show
from dagmaster.errors import Invalid, NotFound
from dagmaster.ids import JobId

if TYPE_CHECKING:  # `--help` must not wait for these imports.
    from dagmaster.explain.facts import Explanation
    from dagmaster.service.asset_contract import AssetService
    from dagmaster.service.contract import Service, SubmitResult
    from dagmaster.settings import Settings
    from dagmaster.tasklogs.reader import LogSelection

T = TypeVar("T")
Row = Mapping[str, Any]
ServiceCall = Callable[["Service"], Coroutine[Any, Any, T]]
AssetCall = Callable[["AssetService"], Coroutine[Any, Any, T]]

LAST = "last"
LONGEST_ID = 19
SHOWN = 4
PAGE = 100


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
    """A workflow in the format of `--json`, and the names of its required inputs."""

    record: Row
    required: Collection[str]


class Backend(Protocol):
    def call(self, verb: ServiceCall[T], *, actor: str | None = None) -> T:
        """Call the service on behalf of `actor`."""

    def call_assets(self, verb: AssetCall[T], *, actor: str | None = None, runs_workflows: bool = False) -> T:
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

    def workers(self, *, status: str | None = None, limit: int) -> Sequence[Row]: ...

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


def find_job(backend: Backend, reference: str) -> JobId:
    """The job that a user names: by its id, by its first digits, or as `last`.

    Raises NotFound, or Invalid if the reference is ambiguous.
    """
    word, colon, workflow_id = reference.partition(":")
    if word.lower() == LAST and bool(colon) is bool(workflow_id):
        return _last(backend, workflow_id or None)
    if not (reference.isdecimal() and reference.isascii() and 1 <= len(reference) <= LONGEST_ID and int(reference)):
        raise Invalid(f"{reference!r} is not a job: use a job id, its first digits, `last` or `last:WORKFLOW`")
    job_ids = backend.job_ids(str(int(reference)), limit=SHOWN + 1)
    if (job_id := JobId(int(reference))) in job_ids:
        return job_id
    if not job_ids:
        raise NotFound(f"there is no job {reference}; `dagmaster jobs` lists them")
    if len(job_ids) > 1:
        named = ", ".join(map(str, job_ids[:SHOWN])) + (", ..." if len(job_ids) > SHOWN else "")
        raise Invalid(f"{reference} matches several jobs: {named}")
    return job_ids[0]


def _last(backend: Backend, workflow_id: str | None) -> JobId:
    """The newest job. A child job counts only if there is no other, or if its workflow is named."""
    jobs = backend.jobs(status=None, workflow_id=workflow_id, limit=PAGE)
    if not jobs:
        raise NotFound(f"workflow {workflow_id!r} has no jobs yet" if workflow_id else "there are no jobs yet")
    own = jobs if workflow_id else [job for job in jobs if job["parent_job_id"] is None]
    return JobId(int((own or jobs)[0]["job_id"]))
