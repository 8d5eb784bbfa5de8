"""List jobs and show one."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from dagmaster.cli.backend import JobDetails, Row, backend_of, find_job
from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import tell
from dagmaster.cli.options import Form, JobReference, JsonOutput, ListForm, TextForm, begin
from dagmaster.cli.output import (
    SYMBOLS,
    as_record,
    as_records,
    at_local_time,
    by_node,
    console,
    count_of,
    dump,
    duration,
    first_line,
    plain_console,
    print_for_reading,
    print_json,
    run_time,
    with_symbol,
)
from dagmaster.cli.progress import Outlook
from dagmaster.model.outcome import Outcome
from dagmaster.model.redact import redact
from dagmaster.model.states import JobStatus, NodeStatus

app = typer.Typer(add_completion=False)


@app.command()
def jobs(
    ctx: typer.Context,
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs with this status.", case_sensitive=False)] = None,
    workflow: Annotated[str | None, typer.Option(metavar="ID", help="Only jobs of this workflow.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of jobs.", min=1, max=10_000)] = 20,
    form: Annotated[
        ListForm | None,
        typer.Option(
            "--output", "-o", help="plain (columns), json (one list) or jsonl (one object per line).", metavar="FORM"
        ),
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """List the newest jobs.

    `completed ✗3` means that three nodes failed and the workflow tolerates it.
    In a pipe, columns are plain and nothing is truncated. FORM is plain, json
    or jsonl.

    \b
    Examples:
      dagmaster jobs --status failed
      dagmaster jobs --output jsonl | jq -r .job_id
    """
    rows = backend_of(ctx, begin(ctx)).jobs(status=status, workflow_id=workflow, limit=limit)
    if as_json or form is ListForm.JSON:
        print_json(as_records(rows))
        return
    if form is ListForm.JSONL:
        for record in as_records(rows):
            typer.echo(dump(record, lines=False))
        return
    if not rows:
        tell("no jobs")
        return
    screen = plain_console() if form is ListForm.PLAIN else console()
    listing = Listing(("JOB", "WORKFLOW", "STATUS", "SUBMITTED", "TIME"), note="ERROR", folds=("WORKFLOW",))
    for row in rows:
        tolerated = row["tolerated_failures"]
        listing.add(
            str(row["job_id"]),
            escape(row["workflow_id"]),
            _with_tolerated(tolerated) if tolerated and screen.is_terminal else with_symbol(row["status"]),
            at_local_time(row["created_at"]),
            duration(run_time(row)),
            # In pipes, a status is one word.
            note=count_of(tolerated, "tolerated failure")
            if tolerated and not screen.is_terminal
            else escape(first_line(row["error_message"] or "")),
        )
    listing.print(screen)


def _with_tolerated(failures: int) -> str:
    """Short, so that a row fits in 80 columns."""
    failed, _ = SYMBOLS[JobStatus.FAILED]
    return with_symbol(Outcome.COMPLETED_WITH_FAILURES, f"{JobStatus.COMPLETED} {failed}{failures:,}")


@app.command()
def show(
    ctx: typer.Context,
    job: JobReference,
    children: Annotated[bool, typer.Option("--children", help="Include the children of fan-outs.")] = False,
    form: Form = TextForm.TEXT,
    as_json: JsonOutput = False,
) -> None:
    """Show a job with its nodes and result.

    \b
    Examples:
      dagmaster show last
      dagmaster show 247845805292758904 --json | jq .result_data
    """
    backend = backend_of(ctx, begin(ctx))
    _print_details(backend.job(find_job(backend, job), children=children), as_json=as_json or form is TextForm.JSON)


def _print_details(details: JobDetails, *, as_json: bool) -> None:
    job, nodes, waiting = details.job, in_order(details.nodes, details.order), details.unserved
    outputs = by_node(job["result_data"], details.order)
    if as_json:
        outlook = details.outlook
        record = {
            **job,
            "overall_percent": outlook.overall_percent,
            "work_percent": outlook.percent,
            "estimated_completion": outlook.ends_at,
            "estimate_basis": outlook.basis,
            "result_data": outputs,
            "value": details.value,
        }
        print_json(redact({**as_record(record), "nodes": as_records(nodes), "unserved": as_records(waiting)}))
        return
    screen = console()
    _print_job(screen, job, details.outlook)
    listing = Listing(("NODE", "STATUS", "ATTEMPTS", "TIME"), note="ERROR", folds=("NODE",))
    for node in nodes:
        listing.add(
            escape(node["node_id"]),
            with_symbol("retrying" if _is_retrying(node) else node["outcome"], _label(node)),
            str(node["retry_count"] + 1) if _was_attempted(node) else "",
            duration(node["duration_seconds"]),
            note=escape(_why(node)),
        )
    screen.print()
    listing.print(screen)
    for row in waiting:
        tasks = count_of(row["tasks"], "task")
        them = "it" if row["tasks"] == 1 else "them"
        tell(f"{tasks} in queue {row['queue']!r} for handler {row['handler']!r}: no running worker accepts {them}")
    for title, value in {"returned": details.value, "result": outputs}.items():
        if value is not None:
            screen.print()
            screen.print(title, style="dim")
            _print_value(screen, value)


def _print_value(screen: Console, value: Any) -> None:
    if screen.is_terminal:
        print_for_reading(screen, value)
    else:
        print_json(value)


def in_order(nodes: Sequence[Row], order: Sequence[str]) -> list[Row]:
    """In graph order; added nodes and the items of a fan-out follow the node that they belong to."""
    places = {node_id: place for place, node_id in enumerate(order)}
    return sorted(nodes, key=lambda node: places.get(node["parent_node_id"] or node["node_id"], len(order)))


def _label(node: Mapping[str, Any]) -> str | None:
    if node["outcome"] != Outcome.COMPLETED_WITH_FAILURES:
        return None
    return f"completed, {node['children'][NodeStatus.FAILED]:,} failed"


def _was_attempted(node: Mapping[str, Any]) -> bool:
    """An attempt may fail before it is dispatched."""
    return bool(node["dispatched_at"] or node["status"] == NodeStatus.FAILED or _is_retrying(node))


def _is_retrying(node: Mapping[str, Any]) -> bool:
    return bool(node["status"] == NodeStatus.READY and node["retry_count"])


def _why(node: Mapping[str, Any]) -> str:
    """The error; for a node between two attempts, the last error and the time of the next attempt."""
    error = first_line(node["last_error"] or "") if _is_retrying(node) else first_line(node["error_message"] or "")
    if _is_retrying(node) and node["not_before"]:
        return f"next at {at_local_time(node['not_before'])}, after: {error}"
    return error


def _deadline(job: Mapping[str, Any]) -> str:
    at = job.get("deadline_at")
    return at_local_time(at) if at is not None and job["completed_at"] is None else ""


def _print_job(screen: Console, job: Mapping[str, Any], outlook: Outlook) -> None:
    facts = {
        "job": str(job["job_id"]),
        "workflow": f"{escape(job['workflow_id'])} version {job['workflow_version']}",
        "status": with_symbol(job["status"]),
        "progress": str(outlook) if job["status"] in (JobStatus.RUNNING, JobStatus.FAILED) else "",
        "error": escape(job["error_message"] or ""),
        "submitted": at_local_time(job["created_at"]),
        "paused": _paused(job),
        "deadline": _deadline(job),
        "by": escape(job["submitted_by"] or ""),
        "correlation": escape(job["correlation_id"] or ""),
        "key": escape(job["idempotency_key"] or ""),
        "priority": str(job["priority"] or ""),
        "time": duration(run_time(job)),
        "inputs": escape(dump(redact(job["input_params"]), lines=False)) if job["input_params"] else "",
    }
    for name, value in facts.items():
        if value:
            screen.print(f"[dim]{name:<12}[/]{value}", soft_wrap=True)


def _paused(job: Mapping[str, Any]) -> str:
    if job["paused_at"] is None:
        return ""
    actor = f" by {escape(job['paused_by'])}" if job["paused_by"] else ""
    return f"[yellow]since {at_local_time(job['paused_at'])}{actor}[/]"
