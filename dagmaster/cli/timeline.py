"""A job's timeline, in words."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import date
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dagmaster.cli.options import JobId, JsonOutput, begin
from dagmaster.cli.output import as_record, console, dump, in_seconds
from dagmaster.cli.sessions import ask
from dagmaster.errors import Invalid
from dagmaster.model.problems import did_you_mean
from dagmaster.model.states import EVENT_ALIASES, JOB_TERMINAL, EventStatus
from dagmaster.store.connect import Connection
from dagmaster.store.events import list_events
from dagmaster.store.jobs import get_job

PAGE = 1000
LOOK_SECONDS = 0.25
STYLES = {EventStatus.SUCCESS: "green", EventStatus.FAILURE: "red", EventStatus.WARNING: "yellow"}

# `{...}` are fields of the event's data; a line with a field that is missing loses the part in brackets around it.
WORDS: Mapping[str, str] = {
    "job_created": "submitted: {workflow_id} version {workflow_version}[ by {submitted_by}]",
    "job_started": "the job has started",
    "job_completed": "the job is completed[ after {duration_seconds} s]",
    "job_failed": "the job has failed[: {error}]",
    "job_cancelled": "the job is cancelled[ by {actor}][: {reason}]",
    "job_warning": "warning[: {warning}]",
    "job_taken_over": "taken over by orchestrator {to}[ from {from}]",
    "node_ready": "ready",
    "node_dispatched": "dispatched[ to queue {queue} for {handler}]",
    "node_started": "started[ on worker {worker_id}]",
    "node_completed": "completed[ in {duration}]",
    "node_failed": "failed[: {error}]",
    "node_retrying": "attempt {next_attempt} of {attempts}[ not before {not_before}]",
    "node_skipped": "skipped[: {reason}]",
    "node_checkpoint": "checkpoint[ {checkpoint_name}]",
    "node_timeout": "timed out[: {error}]",
    "node_warning": "warning[: {warning}]",
    "task_received": "task received[ by worker {worker_id}]",
    "task_completed": "task completed",
    "task_failed": "task failed[: {error}]",
    "result_ignored": "a report of worker {worker_id} was ignored[: {reason}]",
    "orchestrator_cycle": "the orchestrator has looked at the job",
    "orchestrator_error": "an orchestrator stumbled over the job[: {error}]",
    "orchestrator_stall": "the orchestrator stands still",
    "orchestrator_backpressure": "the orchestrator holds tasks back",
    "command": "command[ {name}][ by {actor}]",
}
REASONS = {
    "conditional_branch_not_taken": "its branch was not taken",
    "job_failed": "the job failed",
    "job_cancelled": "the job was cancelled",
}

app = typer.Typer(add_completion=False)


@app.command()
def timeline(
    ctx: typer.Context,
    job_id: JobId,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Only of this node.")] = None,
    types: Annotated[str | None, typer.Option("--type", metavar="A,B", help="Only of these types.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Show everything that happened to a job.

    With --json each line is one event.

    \b
    For example:
      dagmaster timeline 247845805292758904 --node crunch__17
      dagmaster timeline 247845805292758904 --type node_failed,node_retrying
    """
    settings = begin(ctx)
    wanted = _types(types)
    printer = Printer(console(), as_json=as_json)

    async def read(conn: Connection) -> None:
        async for event in _events(conn, job_id, node, wanted, follow=follow):
            printer.print(event)

    ask(settings, read)


def _types(given: str | None) -> list[str]:
    names = [name.strip().lower() for name in (given or "").split(",") if name.strip()]
    known = {*WORDS, *EVENT_ALIASES}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; types are {', '.join(WORDS)}"
            raise Invalid(f"there is no type of event {name!r}{hint}")
    return names


async def _events(
    conn: Connection, job_id: int, node: str | None, types: list[str], *, follow: bool
) -> AsyncIterator[dict[str, Any]]:
    after = 0
    while True:
        # Asked before the events are: what the end of the job has added is still read.
        has_ended = (await get_job(conn, job_id))["status"] in JOB_TERMINAL
        while events := await list_events(conn, job_id, node_id=node, event_types=types, after=after, limit=PAGE):
            for event in events:
                yield event
            after = events[-1]["event_id"]
        if has_ended or not follow:
            return
        await asyncio.sleep(LOOK_SECONDS)


class Printer:
    def __init__(self, screen: Console, *, as_json: bool) -> None:
        self._screen = screen
        self._as_json = as_json
        self._day: date | None = None

    def print(self, event: Mapping[str, Any]) -> None:
        if self._as_json:
            typer.echo(dump(as_record(event), lines=False))
            return
        at = event["created_at"].astimezone()
        if at.date() != self._day:
            self._day = at.date()
            self._screen.print(f"[dim]{self._day}[/]")
        style = STYLES.get(event["event_status"], "")
        line = Text.assemble(
            (at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03d}  ", "dim"),
            (f"{event['node_id']} " if event["node_id"] else "", "bold"),
            (describe(event), style),
        )
        self._screen.print(line, soft_wrap=True)


def describe(event: Mapping[str, Any]) -> str:
    """The event as a sentence without its subject."""
    fields = _fields(event)
    pattern = WORDS.get(event["event_type"], event["event_type"].replace("_", " "))
    head, *parts = pattern.split("[")
    text = _filled(head, fields) or event["event_type"].replace("_", " ")
    for part in parts:
        text += _filled(part.rstrip("]"), fields) or ""
    return text + _ending(event, fields)


def _fields(event: Mapping[str, Any]) -> dict[str, Any]:
    fields = {**(event["event_data"] or {}), "error": event["error_message"]}
    if event["duration_ms"] is not None:
        fields["duration"] = _milliseconds(event["duration_ms"])
    if "attempt" in fields:
        fields["next_attempt"] = fields["attempt"] + 1
        fields["attempts"] = fields.get("max_retries", fields["attempt"]) + 1
    fields["reason"] = REASONS.get(fields.get("reason", ""), fields.get("reason"))
    return fields


def _filled(pattern: str, fields: Mapping[str, Any]) -> str | None:
    """None when a field has no value."""
    try:
        text = pattern.format_map({name: value for name, value in fields.items() if value not in (None, "")})
    except KeyError:
        return None
    return text


def _ending(event: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    return "; it will be tried again" if event["event_type"] == "node_failed" and fields.get("will_retry") else ""


def _milliseconds(duration: int) -> str:
    return f"{duration} ms" if duration < 1000 else in_seconds(duration / 1000)
