"""Assets: list and show them, decide on their versions."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape

from dagmaster.cli.backend import Row, backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import tell
from dagmaster.cli.options import AssetId, InputsJson, JsonOutput, begin
from dagmaster.cli.output import (
    as_record,
    as_records,
    at_local_time,
    console,
    print_fact,
    print_json,
    print_or_tell,
    print_result,
)
from dagmaster.model.asset import ApprovalState, ClearanceState, DataType, ProcessingStatus
from dagmaster.service.asset_contract import (
    Approve,
    AssetCommand,
    AssetQuery,
    AssetResult,
    AssetSubmitResult,
    Clear,
    DeleteAsset,
    DeleteVersion,
    Reject,
    Reprocess,
)

app = typer.Typer(name="assets", add_completion=False)


class Level(StrEnum):
    OUO = "ouo"
    PUBLIC = "public"


Actor = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Name recorded in the history.")]
Ordinal = Annotated[
    int | None,
    typer.Option("--version", metavar="N", help="Version ordinal; default: the version that waits for review.", min=0),
]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Reason recorded in the history.")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of lines.", min=1)]


@app.callback(invoke_without_command=True)
def assets(ctx: typer.Context) -> None:
    """List assets, and approve, reject, clear and delete their versions.

    \b
    Examples:
      dagmaster assets
      dagmaster assets approve a9234e9e7b1ae7c5151568522b54db33 --clearance ouo
    """
    if ctx.invoked_subcommand is None:
        list_all(ctx)


@app.command("list")
def list_all(
    ctx: typer.Context,
    platform: Annotated[str | None, typer.Option(metavar="PLATFORM", help="Only assets of this platform.")] = None,
    data_type: Annotated[DataType | None, typer.Option("--type", help="Only assets of this data type.")] = None,
    clearance: Annotated[ClearanceState | None, typer.Option(help="Only assets with this clearance.")] = None,
    approval: Annotated[
        ApprovalState | None, typer.Option(help="Only assets that have a version in this approval state.")
    ] = None,
    processing: Annotated[
        ProcessingStatus | None, typer.Option(help="Only assets that have a version with this processing status.")
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Include deleted assets.")] = False,
    limit: Limit = 50,
    as_json: JsonOutput = False,
) -> None:
    """List assets, newest first.

    \b
    Examples:
      dagmaster assets list --approval pending_review
      dagmaster assets list --platform ddh --clearance public --json
    """
    query = AssetQuery(platform, data_type, clearance, approval, processing, include_deleted=deleted)
    rows = backend_of(ctx, begin(ctx)).call_assets(lambda service: service.assets(query, limit=limit))
    if print_or_tell(rows, "no assets", as_json=as_json):
        return
    titles = ("ASSET", "PLATFORM", "TYPE", "CLEARANCE", "LATEST", "UNRESOLVED", "VERSIONS", "CREATED")
    listing = Listing(titles, note="REFERENCES")
    for row in rows:
        listing.add(
            row["asset_id"],
            escape(row["platform_id"]),
            row["data_type"],
            "deleted" if row["deleted_at"] else row["clearance_state"],
            _or_dash(row["latest_approved_version_ordinal"]),
            _or_dash(row["unresolved_ordinal"]),
            str(row["version_count"]),
            at_local_time(row["created_at"]),
            note=escape(_refs(row["platform_refs"])),
        )
    listing.print(console())


@app.command()
def show(ctx: typer.Context, asset_id: AssetId, as_json: JsonOutput = False) -> None:
    """Show an asset with its versions.

    \b
    Examples:
      dagmaster assets show a9234e9e7b1ae7c5151568522b54db33
    """
    asset = backend_of(ctx, begin(ctx)).call_assets(lambda service: service.asset(asset_id))
    if as_json:
        print_json({**as_record(asset), "versions": as_records(asset["versions"])})
        return
    print_fact("asset", asset["asset_id"] + (" (deleted)" if asset["deleted_at"] else ""))
    print_fact("platform", f"{asset['platform_id']} {_refs(asset['platform_refs'])}")
    print_fact("type", asset["data_type"])
    print_fact("clearance", asset["clearance_state"])
    print_fact("exposure", asset["exposure_mode"])
    print_fact("latest", _or_dash(asset["latest_approved_version_ordinal"]))
    listing = Listing(("VERSION", "LABEL", "APPROVAL", "PROCESSING", "REVISION", "JOB", "CREATED"), note="ERROR")
    for version in asset["versions"]:
        listing.add(
            str(version["version_ordinal"]),
            escape(version["version_label"] or ""),
            version["approval_state"],
            version["processing_status"],
            str(version["revision"]),
            _or_dash(version["current_job_id"]),
            at_local_time(version["created_at"]),
            note=escape(version["processing_error"] or ""),
        )
    listing.print(console())


@app.command()
def history(ctx: typer.Context, asset_id: AssetId, limit: Limit = 200, as_json: JsonOutput = False) -> None:
    """Show what happened to an asset and who decided it.

    \b
    Examples:
      dagmaster assets history a9234e9e7b1ae7c5151568522b54db33
    """
    events = backend_of(ctx, begin(ctx)).call_assets(lambda service: service.history(asset_id, limit=limit))
    if as_json:
        print_json(as_records(events))
        return
    listing = Listing(("TIME", "EVENT", "VERSION", "BY", "JOB"), note="REASON")
    for event in events:
        listing.add(
            at_local_time(event["created_at"]),
            event["event_type"],
            _or_dash(event["version_ordinal"]),
            escape(event["actor"] or ""),
            _or_dash(event["job_id"]),
            note=escape(event["reason"] or ""),
        )
    listing.print(console())


@app.command()
def approve(
    ctx: typer.Context,
    asset_id: AssetId,
    ordinal: Ordinal = None,
    clearance: Annotated[Level | None, typer.Option(help="Clear the asset in the same step.")] = None,
    comment: Annotated[str | None, typer.Option(metavar="TEXT", help="Comment stored with the approval.")] = None,
    actor: Actor = None,
    as_json: JsonOutput = False,
) -> None:
    """Approve a version.

    The asset must be cleared already, or is cleared by --clearance. An
    approved version of a public asset is exported.

    \b
    Examples:
      dagmaster assets approve a9234e9e7b1ae7c5151568522b54db33 --clearance ouo
    """
    command = Approve(ordinal, ClearanceState(clearance) if clearance else None, comment)
    result = _decide(ctx, asset_id, command, actor)
    _tell(result, f"Approved version {result.ordinal} of asset {asset_id}", as_json=as_json)


@app.command()
def reject(
    ctx: typer.Context,
    asset_id: AssetId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason; the submitter reads it.")],
    ordinal: Ordinal = None,
    actor: Actor = None,
    as_json: JsonOutput = False,
) -> None:
    """Reject a version.

    It can be resubmitted with a new revision, or deleted.

    \b
    Examples:
      dagmaster assets reject a9234e9e7b1ae7c5151568522b54db33 --reason "wrong projection"
    """
    result = _decide(ctx, asset_id, Reject(reason, ordinal), actor)
    _tell(result, f"Rejected version {result.ordinal} of asset {asset_id}", as_json=as_json)


@app.command()
def clear(
    ctx: typer.Context,
    asset_id: AssetId,
    level: Annotated[Level, typer.Argument(metavar="ouo|public", help="ouo: official use only; public: everybody.")],
    reason: Reason = None,
    actor: Actor = None,
    as_json: JsonOutput = False,
) -> None:
    """Clear an asset for official use only, or for the public.

    Public clearance exports the latest approved version.

    \b
    Examples:
      dagmaster assets clear a9234e9e7b1ae7c5151568522b54db33 public
    """
    result = _decide(ctx, asset_id, Clear(ClearanceState(level), reason), actor)
    _tell(result, f"Cleared asset {asset_id}: {level}", as_json=as_json)


@app.command()
def delete(
    ctx: typer.Context,
    asset_id: AssetId,
    ordinal: Annotated[
        int | None, typer.Option("--version", metavar="N", help="Only this version; default: the asset.", min=0)
    ] = None,
    reason: Reason = None,
    actor: Actor = None,
    as_json: JsonOutput = False,
) -> None:
    """Delete an asset or one of its versions.

    Running jobs are cancelled. The rows and the history are kept.

    \b
    Examples:
      dagmaster assets delete a9234e9e7b1ae7c5151568522b54db33 --version 2
    """
    command = DeleteAsset(reason) if ordinal is None else DeleteVersion(ordinal, reason)
    result = _decide(ctx, asset_id, command, actor)
    target = f"asset {asset_id}" if ordinal is None else f"version {ordinal} of asset {asset_id}"
    _tell(result, f"Deleted {target}", as_json=as_json)


@app.command()
def reprocess(
    ctx: typer.Context,
    asset_id: AssetId,
    ordinal: Annotated[int, typer.Argument(metavar="VERSION", help="Version ordinal.", min=0)],
    workflow: Annotated[
        str | None, typer.Option(metavar="WORKFLOW", help="Workflow id; default: that of the last job.")
    ] = None,
    inputs: InputsJson = None,
    resubmit: Annotated[
        bool, typer.Option("--resubmit", help="Send a rejected or failed version to review again.")
    ] = False,
    actor: Actor = None,
    as_json: JsonOutput = False,
) -> None:
    """Process a version again.

    It gets a new revision and keeps its ordinal. Prints the job id.

    \b
    Examples:
      dagmaster assets reprocess a9234e9e7b1ae7c5151568522b54db33 0
      dagmaster assets reprocess a9234e9e7b1ae7c5151568522b54db33 1 --resubmit
    """
    from dagmaster.cli.inputs import read_inputs

    values = read_inputs({}, (), inputs) if inputs is not None else None
    command = Reprocess(ordinal, workflow, values, resubmits=resubmit)
    backend = backend_of(ctx, begin(ctx))
    result = backend.call_assets(lambda service: service.reprocess(asset_id, command), actor=actor, runs_workflows=True)
    _tell(result, str(result.job_id), as_json=as_json)


def _decide(ctx: typer.Context, asset_id: str, command: AssetCommand, actor: str | None) -> AssetResult:
    backend = backend_of(ctx, begin(ctx))
    return backend.call_assets(
        lambda service: service.decide(asset_id, command),
        actor=actor,
        runs_workflows=isinstance(command, Approve | Clear),
    )


def _tell(result: AssetResult | AssetSubmitResult, text: str, *, as_json: bool) -> None:
    if isinstance(result, AssetResult) and result.export_job_id is not None:
        text = f"{text}; job {result.export_job_id} exports it"
    print_result(asdict(result), text, as_json=as_json)
    if not as_json:
        tell(*(f"warning: {warning}" for warning in result.warnings))


def _refs(refs: Row) -> str:
    return " ".join(f"{name}={value}" for name, value in refs.items())


def _or_dash(value: Any) -> str:
    return "–" if value is None else str(value)
