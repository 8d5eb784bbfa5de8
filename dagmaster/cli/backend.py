"""Where the commands find jobs: in the database, or at a server over HTTP. They need not know which."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import typer

from dagmaster.cli.progress import JobView, Outlook, Show

if TYPE_CHECKING:  # Who asks for help does not wait for them.
    from dagmaster.explain.facts import Explanation
    from dagmaster.settings import Settings
    from dagmaster.tasklogs.reader import LogSelection

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """A job as it was asked for on the command line."""

    workflow: str
    pairs: Sequence[str] = ()
    documents: Sequence[str | None] = ()
    handlers: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Receipt:
    job_id: int
    is_new: bool
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Whole:
    """One job with its nodes, how far it is, and those of its tasks that nobody would take.

    `order` are the nodes of its graph as one leads to the next; `value` is what a workflow function has returned.
    """

    job: Row
    nodes: Sequence[Row]
    outlook: Outlook
    unserved: Sequence[Row] = ()
    order: Sequence[str] = ()
    value: Any = None


@dataclass(frozen=True, slots=True)
class Steered:
    """`is_done` is false when the job's owner has not acted yet."""

    status: str
    is_done: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """How the node stands. `is_done` is false when the job's owner has not acted yet."""

    status: str
    is_done: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """A workflow in a list; of its inputs those that may be left out end with a question mark."""

    workflow_id: str
    version: int
    nodes: int
    inputs: Sequence[str]
    source: str
    is_active: bool
    record: Row


@dataclass(frozen=True, slots=True)
class Range:
    """The times that a backfill is for; without an offset they are of the schedule's timezone."""

    start: datetime
    end: datetime
    most: int
    dry_run: bool


class Backend(Protocol):
    def submit(self, order: Order, show: Callable[[Receipt], Show | None]) -> JobView | None:
        """`show` is told of the job, and says how to show it if its end is to be waited for."""

    def jobs(self, *, status: str | None, workflow_id: str | None, limit: int) -> Sequence[Row]: ...

    def job_ids(self, prefix: str, *, limit: int) -> Sequence[int]:
        """The ids of jobs that begin with these digits."""

    def job(self, job_id: int, *, children: bool) -> Whole: ...

    def events(
        self, job_id: int, node: str | None, types: Sequence[str], each: Callable[[Row], None], *, follow: bool
    ) -> None: ...

    def logged(self, job_id: int, *, limit: int) -> Sequence[Row]:
        """Nodes that may have a log: what failed first, then what runs."""

    def logs(self, job_id: int, node: str, wanted: "LogSelection", each: Callable[[str], None]) -> None:
        """Piece by piece; raises NotFound when there is none."""

    def cancel(self, job_id: int, *, actor: str | None, reason: str | None) -> Steered: ...

    def pause(self, job_id: int, *, actor: str | None, reason: str | None) -> Steered: ...

    def resume(self, job_id: int, *, actor: str | None) -> Steered: ...

    def retry(self, job_id: int, node: str | None, *, actor: str | None) -> Steered: ...

    def signal(self, job_id: int, name: str, data: Any, *, actor: str | None) -> str:
        """The status of the job."""

    def decide(self, job_id: int, node: str, *, approved: bool, comment: str | None, actor: str | None) -> Decided: ...

    def explain(self, job_id: int, node: str | None) -> "Explanation": ...

    def instances(self) -> tuple[Sequence[Row], Sequence[Row]]:
        """Orchestrators and workers."""

    def steer_worker(self, worker_id: str, command: str, *, actor: str | None) -> str:
        """What is wanted of it now."""

    def handlers(self) -> Sequence[Row]:
        """Those that workers have registered."""

    def queues(self) -> Sequence[Row]: ...

    def schedules(self) -> Sequence[Row]: ...

    def steer_schedule(self, schedule_id: str, command: str, *, actor: str | None) -> Row:
        """The schedule after it was paused or resumed."""

    def trigger_schedule(self, schedule_id: str, *, actor: str | None) -> Row:
        """The job that was started, and the time it stands for."""

    def sync_schedules(self, handlers: Sequence[str], *, prune: bool, actor: str | None) -> Row:
        """Which were added, changed and removed."""

    def backfill(self, schedule_id: str, wanted: Range, *, actor: str | None) -> Row: ...

    def clear_cache(self, handler: str | None, *, actor: str | None) -> int:
        """How many results were forgotten."""

    def workflows(self, handlers: Sequence[str]) -> tuple[Sequence[Listed], Sequence[Row]]:
        """And the problems of files that were not loaded."""


def backend_of(ctx: typer.Context, settings: "Settings") -> Backend:
    """Until the command has ended. Only the one that is used is imported: psycopg, or httpx."""
    module = "remote" if settings.url else "local"
    made: Backend = ctx.with_resource(import_module(f"dagmaster.cli.{module}").opened(settings))
    return made
