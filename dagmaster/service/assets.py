"""Decide on assets and their versions; versions that become approved and public are exported."""

import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, assert_never

import psycopg

from dagmaster.assets import layers, processing, review
from dagmaster.assets.review import Decision
from dagmaster.errors import Conflict, DagmasterError, Invalid, UnknownWorkflow
from dagmaster.ids import JobId
from dagmaster.model.asset import ApprovalState, Asset, AssetVersion, ClearanceState
from dagmaster.service.asset_contract import (
    Approve,
    AssetCommand,
    AssetResult,
    Clear,
    DeleteAsset,
    DeleteVersion,
    Expose,
    Reject,
)
from dagmaster.service.asset_transaction import get_version, lock_version, save, store_job, transact
from dagmaster.service.context import ServiceContext
from dagmaster.service.definitions import Definitions
from dagmaster.service.submission import new_job
from dagmaster.store.asset_versions import job_ids_of_asset
from dagmaster.store.assets import AssetChange, lock_asset
from dagmaster.store.connect import Connection
from dagmaster.store.submission import NewJob

log = logging.getLogger(__name__)

REPAIR: Final = "the orchestrator retries every few minutes, the command asset.reindex at once"


async def decide(
    context: ServiceContext, definitions: Definitions | None, asset_id: str, command: AssetCommand
) -> AssetResult:
    """Raises UnknownAsset, UnknownVersion, and Conflict if the state does not allow the decision."""

    async def attempt() -> AssetResult:
        asset = await lock_asset(context.conn, asset_id)
        version = await _version_of(context.conn, asset, command)
        at = datetime.now(UTC)
        change = await _change(context, asset, version, command, at)
        job_id, warnings = await _queue_export(context, definitions, asset, version, change)
        if version is not None and job_id is not None:
            export = processing.export(version, Decision(context.actor, at), job_id)
            values, events = {**change.version, **export.version}, (*change.events, *export.events)
            change = replace(change, version=values, events=events)
        await save(context.conn, asset, change, version)
        return AssetResult(asset_id, version.version_ordinal if version is not None else None, job_id, warnings)

    result = await transact(context, attempt)
    match command:
        case Approve() | DeleteVersion() | DeleteAsset():
            return await _refresh_layer(context, result)
        case _:
            return result


async def _refresh_layer(context: ServiceContext, result: AssetResult) -> AssetResult:
    """Update the published layer to the latest approved version. If that fails, the decision stands."""
    dsn = context.settings.external_dsn()
    try:
        publication = await layers.refresh(context.conn, result.asset_id, actor=context.actor, external_dsn=dsn)
        errors = publication.errors if publication is not None else []
    except DagmasterError as error:
        errors = [str(error)]
    except psycopg.Error as error:
        log.warning("the database failed while a layer was refreshed: %s", error)
        errors = ["the database failed; see the server's log"]
    for reason in errors:
        log.warning("the layer of asset %s is not up to date: %s", result.asset_id, reason)
    warnings = [f"the published layer is not up to date: {reason}; {REPAIR}" for reason in errors]
    return replace(result, warnings=(*result.warnings, *warnings))


async def export_version(context: ServiceContext, definitions: Definitions, asset_id: str, ordinal: int) -> AssetResult:
    """Queue the export of an approved version of a public asset, even if it was exported before."""

    async def attempt() -> AssetResult:
        asset, version = await lock_version(context.conn, asset_id, ordinal)
        review.check_live(asset, version)
        if asset.clearance_state is not ClearanceState.PUBLIC or version.approval_state is not ApprovalState.APPROVED:
            raise Conflict("only an approved version of an asset with public clearance is exported")
        decision = Decision(context.actor, datetime.now(UTC))
        job_id = await store_job(context, _export_job(context, definitions, asset, version))
        await save(context.conn, asset, processing.export(version, decision, job_id), version)
        return AssetResult(asset_id, ordinal, job_id)

    return await transact(context, attempt)


async def _version_of(conn: Connection, asset: Asset, command: AssetCommand) -> AssetVersion | None:
    """The decided version. Public clearance concerns the latest approved one, which is exported."""
    match command:
        case Approve(ordinal) | Reject(ordinal=ordinal) | DeleteVersion(ordinal):
            return await get_version(conn, asset, ordinal)
        case Clear(ClearanceState.PUBLIC) if asset.latest_approved is not None:
            return await get_version(conn, asset, asset.latest_approved)
        case Clear() | Expose() | DeleteAsset():
            return None
        case _:
            assert_never(command)


async def _change(
    context: ServiceContext, asset: Asset, version: AssetVersion | None, command: AssetCommand, at: datetime
) -> AssetChange:
    actor = context.actor
    match command:
        case Approve(level=level, comment=comment):
            assert version is not None
            return review.approve(asset, version, Decision(actor, at, comment), level)
        case Reject(reason):
            assert version is not None
            return review.reject(asset, version, Decision(actor, at, reason))
        case DeleteVersion(reason=reason):
            assert version is not None
            return review.delete_version(asset, version, Decision(actor, at, reason))
        case Clear(level, reason):
            return review.clear(asset, Decision(actor, at, reason), level)
        case Expose(mode):
            return review.expose(asset, Decision(actor, at), mode)
        case DeleteAsset(reason):
            job_ids = await job_ids_of_asset(context.conn, asset.asset_id)
            return review.delete_asset(asset, Decision(actor, at, reason), job_ids)
        case _:
            assert_never(command)


async def _queue_export(
    context: ServiceContext,
    definitions: Definitions | None,
    asset: Asset,
    version: AssetVersion | None,
    change: AssetChange,
) -> tuple[JobId | None, tuple[str, ...]]:
    """Export a version that this change makes both approved and public: returns the job, or why there is none."""
    clearance = change.asset.get("clearance_state", asset.clearance_state)
    if version is None or clearance is not ClearanceState.PUBLIC:
        return None, ()
    was_out = asset.clearance_state is ClearanceState.PUBLIC and version.approval_state is ApprovalState.APPROVED
    approval = change.version.get("approval_state", version.approval_state)
    if was_out or approval is not ApprovalState.APPROVED or "deleted_at" in change.version:
        return None, ()
    name = context.settings.export_workflow
    if definitions is None:
        return None, (f"the version was not exported: no workflows are loaded here, so {name!r} is missing",)
    try:
        job = _export_job(context, definitions, asset, version)
    except UnknownWorkflow:
        return None, (
            f"the version was not exported: no workflow is named {name!r} (DAGMASTER_EXPORT_WORKFLOW); "
            "once it is there, export the version",
        )
    except Invalid as error:  # A version without a blob, and a workflow that needs one: the approval stands.
        return None, (f"the version was not exported: {error}",)
    return await store_job(context, job), ()


def _export_job(context: ServiceContext, definitions: Definitions, asset: Asset, version: AssetVersion) -> NewJob:
    workflow = definitions.find(context.settings.export_workflow)
    known = {
        "asset_id": asset.asset_id,
        "version_ordinal": version.version_ordinal,
        "blob_path": version.blob_path,
    }
    is_taken = workflow.additional_inputs
    return new_job(
        definitions.graph_of(workflow),
        {name: value for name, value in known.items() if value is not None and (is_taken or name in workflow.inputs)},
        context.settings,
        submitted_by=context.actor or "",
        actor=context.actor,
        asset_id=asset.asset_id,
        version_ordinal=version.version_ordinal,
    )
