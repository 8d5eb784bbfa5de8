"""From a request to a stored job."""

from dagmaster.authoring.contracts import check_params
from dagmaster.authoring.preparation import tasks_of
from dagmaster.model.inputs import check_inputs
from dagmaster.model.problems import did_you_mean
from dagmaster.model.workflow import Workflow
from dagmaster.schemas.jobs import SubmitJob
from dagmaster.store.connect import Connection
from dagmaster.store.submission import NewJob, Submitted, submit
from dagmaster.tracing import current_trace_parent, describe, span
from dagmaster.url_policy import check_url, policy_of
from dagmaster.web.access import Caller
from dagmaster.web.services import Services


async def submit_job(
    services: Services, conn: Connection, caller: Caller, body: SubmitJob
) -> tuple[Submitted, Workflow]:
    """Raises what is wrong with it before anything is stored."""
    await services.learn(conn)
    workflow = services.catalog.get(body.workflow_id)
    if body.callback_url is not None:
        settings = services.settings
        check_url(
            body.callback_url, policy_of(settings.callback_allowed_hosts, allow_http=settings.callback_allow_http)
        )
    with span("submit_job", workflow_id=body.workflow_id) as traced:
        job = _new_job(services, workflow, caller, body)
        if any(services.refused_params(one.workflow) for one in (job.graph, *job.graph.called)):
            await check_params(conn, job.graph, services.contracts, services.settings)
        submitted = await _submit(services, conn, job)
        describe(traced, job_id=submitted.job_id, is_new=submitted.is_new)
    return submitted, workflow


def _new_job(services: Services, workflow: Workflow, caller: Caller, body: SubmitJob) -> NewJob:
    return NewJob(
        services.graph_of(workflow),
        check_inputs(workflow, body.input_params),
        priority=body.priority,
        # A partner's jobs are known by its key: nobody may submit in another's name.
        submitted_by=caller.name if caller.is_partner else body.submitted_by or caller.name,
        correlation_id=body.correlation_id,
        idempotency_key=body.idempotency_key,
        callback_url=body.callback_url,
        metadata=body.metadata,
        trace_parent=current_trace_parent(),
        secret_key=services.settings.chosen_secret(),
        actor=caller.name or None,
    )


async def _submit(services: Services, conn: Connection, job: NewJob) -> Submitted:
    submitted = await submit(
        conn,
        job,
        threshold_seconds=services.settings.orphan_threshold_seconds,
        source_app="api",
        notifies=services.orchestrator is None and services.notifier.can_piggyback(),
    )
    services.wake()
    return submitted


async def warnings_for(services: Services, conn: Connection, workflow: Workflow) -> list[str]:
    """The job is safe, but nobody may be there to run it, or a worker may refuse what it is given."""
    fleet = await services.fleet(conn)
    refused = [problem.message for problem in services.refused_params(workflow)]
    if not fleet.is_orchestrated:
        return ["no orchestrator is running; the job waits until one is", *refused]
    return refused + [
        f"no worker has registered the handler {handler!r}{did_you_mean(handler, services.contracts)}"
        if handler not in services.contracts
        else f"no worker takes tasks for handler {handler!r} from queue {queue!r}; they wait for one that does"
        for queue, handler in sorted(tasks_of(workflow))
        if not fleet.takes(queue, handler)
    ]
