"""Submit versions of assets and process them again: request, asset, version and job in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import uuid4

import orjson

from dagmaster.assets import processing, review
from dagmaster.assets.review import Decision
from dagmaster.errors import Conflict, Forbidden, Invalid, UnknownJob
from dagmaster.ids import JobId
from dagmaster.model.asset import Asset, AssetVersion, Platform, asset_id_of, identifying_refs, ref_strings
from dagmaster.model.states import JobStatus
from dagmaster.model.workflow import Workflow
from dagmaster.service.asset_contract import AssetSubmission, AssetSubmitResult, Reprocess, RequestOrigin
from dagmaster.service.asset_transaction import lock_version, save, store_job, transact
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import SubmitRequest
from dagmaster.service.definitions import Definitions
from dagmaster.service.submission import find_file_problems, idle_warnings, new_job, prepare_job
from dagmaster.store.api_requests import NewRequest, RequestRow, add_request, answer_request
from dagmaster.store.asset_versions import add_version, find_version
from dagmaster.store.assets import StaleVersion, add_asset, lock_asset
from dagmaster.store.connect import Connection
from dagmaster.store.jobs import get_job
from dagmaster.store.platforms import find_platform, unknown_platform


async def submit_version(
    context: ServiceContext, definitions: Definitions, submission: AssetSubmission
) -> AssetSubmitResult:
    """Create request, asset, version and job, or nothing. A repeated request gets the first result.

    Raises UnknownPlatform, UnknownWorkflow, Invalid for missing references, and Conflict while a version of the asset
    is unresolved.
    """
    conn, job = context.conn, submission.job
    workflow = definitions.find(job.workflow)
    platform = await _platform_for(conn, submission.platform_id, workflow.workflow_id)
    refs = ref_strings(submission.platform_refs)
    identity = identifying_refs(platform, refs)
    asset_id = asset_id_of(platform.platform_id, identity)
    origin = RequestOrigin(submission.request_id or str(uuid4()), platform.platform_id)
    content: list[Any] = [workflow.workflow_id, job.inputs, submission.platform_id, refs]
    content += [submission.data_type, submission.version_label, submission.resubmit]
    request = _new_request(origin, job, asset_id, content)
    job = replace(job, correlation_id=job.correlation_id or origin.request_id)
    problems = await find_file_problems(workflow, job.inputs, context.settings)

    async def attempt() -> AssetSubmitResult:
        if (first := await add_request(conn, request)) is not None:
            return _repeated(first, workflow)
        is_new = await add_asset(
            conn,
            asset_id=asset_id,
            platform_id=platform.platform_id,
            platform_refs=identity,
            data_type=submission.data_type,
        )
        asset = await lock_asset(conn, asset_id)
        _check_accepts(asset, submission)
        version = await _version_to_process(conn, asset, submission, refs)
        inputs = _with_asset_inputs(workflow, job.inputs, asset, version, refs, submission.version_label)
        new, warnings = await prepare_job(
            context,
            definitions,
            workflow,
            replace(job, inputs=inputs),
            asset_id=asset_id,
            version_ordinal=version.version_ordinal,
            known_problems=problems,
        )
        job_id = await store_job(context, new)
        await answer_request(conn, request.request_id, job_id=job_id, ordinal=version.version_ordinal)
        decision = Decision(job.submitted_by or context.actor, datetime.now(UTC))
        if submission.resubmit:
            change = processing.resubmit(asset, version, decision, job_id, label=submission.version_label, refs=refs)
        else:
            change = processing.begin(asset, version.version_ordinal, decision, job_id, is_new_asset=is_new)
        await save(conn, asset, change, version)
        result = _accepted(request.request_id, job_id, workflow, warnings)
        return _about(result, version, revision=version.revision + submission.resubmit)

    return await _with_idle_warnings(context, definitions, await transact(context, attempt))


async def submit_request(
    context: ServiceContext, definitions: Definitions, job: SubmitRequest, origin: RequestOrigin
) -> AssetSubmitResult:
    """A plain job under the sender's own request id, which becomes its correlation id."""
    conn = context.conn
    workflow = definitions.find(job.workflow)
    if origin.platform_id is not None:
        await _platform_for(conn, origin.platform_id, workflow.workflow_id)
    job = replace(job, correlation_id=origin.request_id)
    request = _new_request(origin, job, None, [workflow.workflow_id, job.inputs])
    problems = await find_file_problems(workflow, job.inputs, context.settings)

    async def attempt() -> AssetSubmitResult:
        if (first := await add_request(conn, request)) is not None:
            return _repeated(first, workflow)
        new, warnings = await prepare_job(context, definitions, workflow, job, known_problems=problems)
        job_id = await store_job(context, new)
        await answer_request(conn, request.request_id, job_id=job_id, ordinal=None)
        return _accepted(request.request_id, job_id, workflow, warnings)

    return await _with_idle_warnings(context, definitions, await transact(context, attempt))


def _accepted(request_id: str, job_id: JobId, workflow: Workflow, warnings: Sequence[str] = ()) -> AssetSubmitResult:
    return AssetSubmitResult(
        request_id=request_id,
        job_id=job_id,
        workflow_id=workflow.workflow_id,
        workflow_version=workflow.version,
        status=JobStatus.PENDING,
        is_new=True,
        warnings=tuple(warnings),
    )


def _about(result: AssetSubmitResult, version: AssetVersion, *, revision: int) -> AssetSubmitResult:
    return replace(result, asset_id=version.asset_id, version_ordinal=version.version_ordinal, revision=revision)


async def _with_idle_warnings(
    context: ServiceContext, definitions: Definitions, result: AssetSubmitResult
) -> AssetSubmitResult:
    """Read the fleet after the transaction, which holds a lock."""
    if not result.is_new:
        return result
    idle = idle_warnings(definitions.find(result.workflow_id), await context.fleet(), definitions.contracts)
    return replace(result, warnings=(*result.warnings, *idle))


async def _platform_for(conn: Connection, platform_id: str, workflow_id: str) -> Platform:
    platform = await find_platform(conn, platform_id)
    if platform is None:
        raise await unknown_platform(conn, platform_id)
    if not platform.is_active:
        raise Invalid(f"platform {platform_id!r} is not active and accepts no submissions")
    _check_allowed(platform, workflow_id)
    return platform


def _check_allowed(platform: Platform, workflow_id: str) -> None:
    if platform.allowed_workflows is not None and workflow_id not in platform.allowed_workflows:
        allowed = ", ".join(map(repr, platform.allowed_workflows)) or "none"
        raise Forbidden(
            f"platform {platform.platform_id!r} may not submit workflow {workflow_id!r}; allowed: {allowed}"
        )


def _check_accepts(asset: Asset, submission: AssetSubmission) -> None:
    if asset.deleted_at is not None:
        raise Conflict(f"asset {asset.asset_id!r} is deleted and accepts no submissions")
    if asset.data_type is not submission.data_type:
        raise Conflict(f"asset {asset.asset_id!r} is a {asset.data_type} dataset, not {submission.data_type}")


async def _version_to_process(
    conn: Connection, asset: Asset, submission: AssetSubmission, refs: Mapping[str, str]
) -> AssetVersion:
    """A new version, unless it is a resubmission. The database ensures that at most one is unresolved."""
    if submission.resubmit:
        version = await find_version(conn, asset.asset_id, None)
        if version is None:
            raise Conflict("no version of the asset was rejected or has failed; submit a new one without `resubmit`")
        processing.check_resubmission(asset, version)
        return version
    ordinal = asset.next_ordinal
    is_added = await add_version(
        conn,
        asset_id=asset.asset_id,
        ordinal=ordinal,
        label=submission.version_label,
        refs=refs,
        submitted_by=submission.job.submitted_by,
    )
    version = await find_version(conn, asset.asset_id, ordinal if is_added else None)
    if version is None:  # It was resolved a moment ago.
        raise StaleVersion
    if not is_added:
        raise Conflict(review.blocking_version(version))
    return version


def _with_asset_inputs(
    workflow: Workflow,
    inputs: Mapping[str, Any],
    asset: Asset,
    version: AssetVersion,
    refs: Mapping[str, Any],
    label: str | None,
) -> dict[str, Any]:
    """Set the asset and version inputs that the workflow declares; submitters cannot override them."""
    known = {
        "asset_id": asset.asset_id,
        "version_ordinal": version.version_ordinal,
        "version_label": label,
        "platform_id": asset.platform_id,
        "platform_refs": dict(refs),
        "data_type": str(asset.data_type),
    }
    declared = {name: value for name, value in known.items() if name in workflow.inputs and value is not None}
    return {**inputs, **declared}


def _new_request(origin: RequestOrigin, job: SubmitRequest, asset_id: str | None, content: list[Any]) -> NewRequest:
    return NewRequest(
        request_id=origin.request_id,
        workflow_id=job.workflow,
        request_hash=sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)).hexdigest(),
        submitted_by=job.submitted_by,
        platform_id=origin.platform_id,
        asset_id=asset_id,
        idempotency_key=job.idempotency_key,
    )


def _repeated(first: RequestRow, workflow: Workflow) -> AssetSubmitResult:
    if first["job_id"] is None:
        raise UnknownJob(f"request {first['request_id']!r} has no job")
    return AssetSubmitResult(
        request_id=first["request_id"],
        job_id=first["job_id"],
        workflow_id=first["workflow_id"],
        workflow_version=workflow.version,
        status=first["status"],
        is_new=False,
        asset_id=first["asset_id"],
        version_ordinal=first["version_ordinal"],
    )


async def reprocess(
    context: ServiceContext, definitions: Definitions, asset_id: str, command: Reprocess
) -> AssetSubmitResult:
    """Start a new job for a version, which makes a new revision of it."""
    conn, actor, request_id = context.conn, context.actor, str(uuid4())

    async def attempt() -> AssetSubmitResult:
        asset, version = await lock_version(conn, asset_id, command.ordinal)
        review.check_live(asset, version)
        last = await _last_job(conn, version, command)
        workflow = definitions.find(command.workflow or last["workflow_id"])
        await _check_platform_of(conn, asset, workflow.workflow_id, command)
        inputs = _inputs_of(workflow, asset, version, command, last)
        job = new_job(
            definitions.graph_of(workflow),
            inputs,
            context.settings,
            may_be_sealed=command.inputs is None,
            priority=command.priority,
            submitted_by=actor or "",
            correlation_id=request_id,
            metadata=command.metadata,
            actor=actor,
            asset_id=asset_id,
            version_ordinal=version.version_ordinal,
        )
        origin = RequestOrigin(request_id, asset.platform_id)
        request = SubmitRequest(workflow.workflow_id, inputs, submitted_by=actor or "")
        await add_request(conn, _new_request(origin, request, asset_id, [workflow.workflow_id, inputs]))
        job_id = await store_job(context, job)
        await answer_request(conn, request_id, job_id=job_id, ordinal=version.version_ordinal)
        decision = Decision(actor, datetime.now(UTC))
        if command.resubmits:
            change = processing.resubmit(asset, version, decision, job_id, label=command.version_label)
        else:
            change = processing.reprocess(asset, version, decision, job_id)
        await save(conn, asset, change, version)
        return _about(_accepted(request_id, job_id, workflow), version, revision=version.revision + 1)

    return await _with_idle_warnings(context, definitions, await transact(context, attempt))


async def _check_platform_of(conn: Connection, asset: Asset, workflow_id: str, command: Reprocess) -> None:
    """An existing version may be processed again unchanged, whatever the platform accepts today."""
    if command.resubmits:
        await _platform_for(conn, asset.platform_id, workflow_id)
    elif command.workflow is not None and (platform := await find_platform(conn, asset.platform_id)) is not None:
        _check_allowed(platform, workflow_id)


def _inputs_of(
    workflow: Workflow, asset: Asset, version: AssetVersion, command: Reprocess, last: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs of the last job, or the new ones. A new label replaces that of the last job."""
    label = command.version_label
    inputs = dict(last["input_params"] if command.inputs is None else command.inputs)
    if command.inputs is None and label is not None and "version_label" in inputs:
        inputs["version_label"] = label
    return _with_asset_inputs(workflow, inputs, asset, version, version.platform_refs, label or version.version_label)


async def _last_job(conn: Connection, version: AssetVersion, command: Reprocess) -> Mapping[str, Any]:
    if command.workflow is not None and command.inputs is not None:
        return {}
    try:
        return await get_job(conn, version.current_job_id or JobId(0))
    except UnknownJob as error:
        raise Conflict(
            f"the last job of version {version.version_ordinal} was removed; give workflow_id and input_params"
        ) from error
