"""Jobs: list them, look at one."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from dagmaster.cli.backend import backend_of
from dagmaster.cli.failures import tell
from dagmaster.cli.options import JobId, JsonOutput, begin
from dagmaster.cli.output import (
    as_record,
    as_records,
    at_local_time,
    between,
    console,
    count_of,
    dump,
    first_line,
    in_seconds,
    print_for_reading,
    print_json,
    table,
    with_symbol,
)
from dagmaster.cli.progress import Outlook
from dagmaster.model.redact import redact
from dagmaster.model.states import JobStatus, NodeStatus

app = typer.Typer(add_completion=False)


@app.command()
def jobs(
    ctx: typer.Context,
    status: Annotated[JobStatus | None, typer.Option(help="Only of this status.", case_sensitive=False)] = None,
    workflow: Annotated[str | None, typer.Option(metavar="ID", help="Only of this workflow.")] = None,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=10_000)] = 20,
    as_json: JsonOutput = False,
) -> None:
    """List the newest jobs.

    \b
    For example:
      dagmaster jobs --status failed
      dagmaster jobs --json | jq -r '.[].job_id'
    """
    rows = backend_of(ctx, begin(ctx)).jobs(status=status, workflow_id=workflow, limit=limit)
    if as_json:
        print_json(as_records(rows))
        return
    if not rows:
        tell("no jobs")
        return
    listing = table("JOB", "WORKFLOW", "STATUS", "SUBMITTED", "TIME", "ERROR")
    for row in rows:
        error = (row["error_message"] or "").partition("\n")[0]
        listing.add_row(
            str(row["job_id"]),
            escape(row["workflow_id"]),
            with_symbol(row["status"]),
            at_local_time(row["created_at"]),
            in_seconds(_seconds(row)),
            escape(error),
        )
    listing.columns[-1].overflow = "ellipsis"
    console().print(listing)


@app.command()
def show(
    ctx: typer.Context,
    job_id: JobId,
    children: Annotated[bool, typer.Option("--children", help="The children of fan-outs too.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Show one job with its nodes and its result.

    \b
    For example:
      dagmaster show 247845805292758904
      dagmaster show 247845805292758904 --json | jq .result_data
    """
    whole = backend_of(ctx, begin(ctx)).job(job_id, children=children)
    job, nodes, waiting = whole.job, whole.nodes, whole.unserved
    if as_json:
        ahead = as_record(_ahead(whole.outlook))
        print_json({**as_record(job), **ahead, "nodes": as_records(nodes), "unserved": as_records(waiting)})
        return
    screen = console()
    _print_job(screen, job, whole.outlook)
    listing = table("", "NODE", "STATUS", "ATTEMPTS", "TIME", "ERROR")
    for node in nodes:
        listing.add_row(
            "",
            escape(node["node_id"]),
            with_symbol("retrying" if _is_retrying(node) else node["status"]),
            str(node["retry_count"] + 1) if node["dispatched_at"] or _is_retrying(node) else "",
            in_seconds(between(node["started_at"], node["completed_at"])) if node["started_at"] else "",
            escape(_why(node)),
        )
    listing.columns[-1].overflow = "ellipsis"
    screen.print()
    screen.print(listing)
    for one in waiting:
        tasks = count_of(one["tasks"], "task")
        tell(f"{tasks} in queue {one['queue']!r} for handler {one['handler']!r}: no worker that takes such is running")
    if job["result_data"] is not None:
        screen.print()
        screen.print("result", style="dim")
        if screen.is_terminal:
            print_for_reading(screen, job["result_data"])
        else:
            print_json(job["result_data"])


def _is_retrying(node: Mapping[str, Any]) -> bool:
    return bool(node["status"] == NodeStatus.READY and node["retry_count"])


def _why(node: Mapping[str, Any]) -> str:
    """Its error; for a node between two attempts that of the last one, and when the next one is due."""
    error = first_line(node["last_error"] or "") if _is_retrying(node) else first_line(node["error_message"] or "")
    if _is_retrying(node) and node["not_before"]:
        return f"next at {at_local_time(node['not_before'])}, after: {error}"
    return error


def _ahead(outlook: Outlook) -> dict[str, Any]:
    """Named as the HTTP API names it."""
    return {
        "overall_percent": outlook.percent,
        "estimated_completion": outlook.ends_at,
        "estimate_basis": outlook.basis,
    }


def _print_job(screen: Console, job: Mapping[str, Any], outlook: Outlook) -> None:
    facts = {
        "job": str(job["job_id"]),
        "workflow": f"{escape(job['workflow_id'])} version {job['workflow_version']}",
        "status": with_symbol(job["status"]),
        "progress": str(outlook) if job["status"] in (JobStatus.RUNNING, JobStatus.FAILED) else "",
        "error": escape(job["error_message"] or ""),
        "submitted": at_local_time(job["created_at"]),
        "paused": _paused(job),
        "by": escape(job["submitted_by"] or ""),
        "correlation": escape(job["correlation_id"] or ""),
        "key": escape(job["idempotency_key"] or ""),
        "priority": str(job["priority"] or ""),
        "time": in_seconds(_seconds(job)),
        "inputs": escape(dump(redact(job["input_params"]), lines=False)) if job["input_params"] else "",
    }
    for name, value in facts.items():
        if value:
            screen.print(f"[dim]{name:<12}[/]{value}", soft_wrap=True)


def _paused(job: Mapping[str, Any]) -> str:
    if job["paused_at"] is None:
        return ""
    who = f" by {escape(job['paused_by'])}" if job["paused_by"] else ""
    return f"[yellow]since {at_local_time(job['paused_at'])}{who}[/]"


def _seconds(job: Mapping[str, Any]) -> float | None:
    return between(job["started_at"], job["completed_at"]) if job["started_at"] else None
