"""From a request to a stored job."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dagmaster.authoring.contracts import check_params
from dagmaster.authoring.preparation import tasks_of
from dagmaster.errors import Invalid, NotFound
from dagmaster.model.contracts import Contracts
from dagmaster.model.graph import Graph
from dagmaster.model.inputs import check_inputs
from dagmaster.model.problems import did_you_mean
from dagmaster.model.states import JobStatus
from dagmaster.model.workflow import InputFormat, Workflow
from dagmaster.service.context import KnownFleet, ServiceContext
from dagmaster.service.contract import SubmitRequest, SubmitResult
from dagmaster.service.definitions import Definitions
from dagmaster.settings import Settings
from dagmaster.storage import StorageUnavailable, open_storage
from dagmaster.store import submission
from dagmaster.store.jobs import get_job_head
from dagmaster.store.submission import NewJob, Submitted
from dagmaster.tracing import current_trace_parent, describe, span
from dagmaster.url_policy import check_url, policy_of

log = logging.getLogger(__name__)


def new_job(
    graph: Graph,
    inputs: Mapping[str, Any],
    settings: Settings,
    *,
    may_be_sealed: bool = False,
    known_problems: Sequence[str] = (),
    **options: Any,
) -> NewJob:
    """A job for a graph that is ready to run, with checked inputs; `options` are fields of NewJob.

    Inputs that come from another job may hold sealed secrets.
    """
    checked = check_inputs(graph.workflow, inputs, may_be_sealed=may_be_sealed, known_problems=known_problems)
    return NewJob(graph, checked, secret_key=settings.chosen_secret(), **options)


async def store_job(context: ServiceContext, job: NewJob) -> Submitted:
    submitted = await add_job(context, job, notifies=context.notifies)
    context.wake()
    return submitted


async def add_job(context: ServiceContext, job: NewJob, *, notifies: bool = True) -> Submitted:
    """Store the job; the orchestrators are notified when the caller's transaction commits."""
    return await submission.submit(
        context.conn,
        job,
        threshold_seconds=context.settings.orphan_threshold_seconds,
        owner_id=context.owner_id,
        source_app=context.source_app,
        notifies=notifies,
    )


async def submit(context: ServiceContext, definitions: Definitions, request: SubmitRequest) -> SubmitResult:
    """Raises all problems before anything is stored."""
    workflow = definitions.find(request.workflow)
    with span("submit_job", workflow_id=workflow.workflow_id) as traced:
        problems = await find_file_problems(workflow, request.inputs, context.settings)
        job, refused = await prepare_job(context, definitions, workflow, request, known_problems=problems)
        submitted = await store_job(context, job)
        describe(traced, job_id=submitted.job_id, is_new=submitted.is_new)
    if not submitted.is_new:
        head = await get_job_head(context.conn, submitted.job_id)
        return SubmitResult(submitted.job_id, head["workflow_id"], head["workflow_version"], head["status"], False)
    warnings = (*refused, *idle_warnings(workflow, await context.fleet(), definitions.contracts))
    version = workflow.version
    return SubmitResult(submitted.job_id, workflow.workflow_id, version, JobStatus.PENDING, True, warnings)


async def find_file_problems(workflow: Workflow, inputs: Mapping[str, Any], settings: Settings) -> list[str]:
    """The inputs declared with `format: file` whose file does not exist.

    If the storage cannot be reached from here, nothing is known about the file, and the job will find out.
    """
    names = [name for name, spec in workflow.inputs.items() if spec.format is InputFormat.FILE]
    named = {name: inputs[name] for name in names if isinstance(inputs.get(name), str) and inputs[name]}
    storage = open_storage(settings) if named else None
    problems = []
    for name, reference in named.items():
        assert storage is not None
        try:
            await storage.source(storage.locate(reference))
        except StorageUnavailable as error:
            log.warning("input %r was submitted unchecked: %s", name, error)
        except (Invalid, NotFound) as error:
            problems.append(f"input {name!r}: {error}")
    return problems


async def prepare_job(
    context: ServiceContext, definitions: Definitions, workflow: Workflow, request: SubmitRequest, **options: Any
) -> tuple[NewJob, list[str]]:
    """The requested job, not stored yet, and the parameters that some worker might reject."""
    settings = context.settings
    if request.callback_url is not None:
        policy = policy_of(settings.callback_allowed_hosts, allow_http=settings.callback_allow_http)
        check_url(request.callback_url, policy)
    job = new_job(
        definitions.graph_of(workflow),
        request.inputs,
        settings,
        priority=request.priority,
        submitted_by=request.submitted_by,
        correlation_id=request.correlation_id,
        idempotency_key=request.idempotency_key,
        callback_url=request.callback_url,
        metadata=request.metadata,
        trace_parent=current_trace_parent(),
        actor=context.actor,
        **options,
    )
    return job, await _refused_params(context, definitions, job.graph)


async def _refused_params(context: ServiceContext, definitions: Definitions, graph: Graph) -> list[str]:
    """The parameters that some worker might reject; raises InvalidWorkflow if every worker would."""
    workflows = [graph.workflow, *(called.workflow for called in graph.called)]
    if not any(definitions.refused_params(workflow) for workflow in workflows):
        return []
    problems = await check_params(context.conn, graph, definitions.contracts, context.settings)
    return [problem.message for problem in problems]


def idle_warnings(workflow: Workflow, fleet: KnownFleet, contracts: Contracts) -> list[str]:
    """Why the stored job cannot run now."""
    if not fleet.is_orchestrated:
        return ["no orchestrator is running; the job waits until one starts (`dagmaster orchestrator`)"]
    return [
        _idle_task(queue, handler, fleet, contracts)
        for queue, handler in sorted(tasks_of(workflow))
        if not fleet.takes(queue, handler)
    ]


def _idle_task(queue: str, handler: str, fleet: KnownFleet, contracts: Contracts) -> str:
    if handler not in contracts:
        return f"no worker has registered the handler {handler!r}{did_you_mean(handler, contracts)}"
    if not fleet.consumes(queue):
        return f"no worker takes tasks from queue {queue!r}; start one with `dagmaster worker --queues {queue}`"
    return f"no worker of queue {queue!r} has the handler {handler!r}; its tasks wait for one that has it"
