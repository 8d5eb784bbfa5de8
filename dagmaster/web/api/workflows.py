"""The loaded workflows."""

import asyncio
from pathlib import Path

from fastapi import APIRouter

from dagmaster.authoring.sample import write_sample
from dagmaster.errors import Conflict, Forbidden
from dagmaster.http.errors import documented
from dagmaster.model.inputs import input_schema
from dagmaster.model.params import described
from dagmaster.model.workflow import Workflow
from dagmaster.schemas.workflows import ProblemReply, WorkflowList, WorkflowReply, WorkflowSummary
from dagmaster.store.audit import note_command
from dagmaster.store.notifications import RELOAD
from dagmaster.web.access import OPERATORS, READERS_OF_OWN, Admitted
from dagmaster.web.graph_view import workflow_edges, workflow_nodes
from dagmaster.web.services import Conn, Services, ServicesDep

router = APIRouter(prefix="/api/v1/workflows", tags=["workflows"])


@router.get("", dependencies=[READERS_OF_OWN])
async def list_workflows(services: ServicesDep) -> WorkflowList:
    """List the loaded workflows, and the problems of files that could not be loaded."""
    return _workflow_list(services)


@router.post("/reload", dependencies=[OPERATORS])
async def reload_workflows(caller: Admitted, services: ServicesDep, conn: Conn) -> WorkflowList:
    """Reload changed files on all servers of the fleet. Running jobs are not affected."""
    await services.reload_workflows()
    await services.sync_schedules(conn, actor=caller.name or None)
    await note_command(conn, {"command": "workflows.reload", "actor": caller.name or None})
    services.notifier.notify(RELOAD)
    return _workflow_list(services)


@router.post("/sample", status_code=201, responses=documented(409), dependencies=[OPERATORS])
async def add_sample(caller: Admitted, services: ServicesDep, conn: Conn) -> WorkflowList:
    """Write a sample workflow to the workflows folder. Only for local servers without workflows."""
    if not services.is_local:
        raise Forbidden("the sample is available only on a server that other machines cannot reach")
    if services.catalog.workflows:
        raise Conflict("workflows are already loaded; the sample is for an empty installation")
    await asyncio.to_thread(write_sample, services.settings.workflows_dir)
    await services.reload_workflows()
    await note_command(conn, {"command": "workflows.sample", "actor": caller.name or None})
    return _workflow_list(services)


@router.get("/{workflow_id}", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_workflow(workflow_id: str, services: ServicesDep, conn: Conn) -> WorkflowReply:
    """Get a workflow with its inputs as a JSON Schema, its nodes and its edges."""
    await services.learn(conn)
    workflow = services.catalog.get(workflow_id)
    return WorkflowReply(
        **_summary(services, workflow).model_dump(),
        workflow_hash=workflow.content_hash,
        inputs=input_schema(described(workflow, services.contracts)),
        nodes=workflow_nodes(workflow),
        edges=list(workflow_edges(workflow)),
        warnings=await services.warnings_for(conn, workflow),
    )


def _workflow_list(services: Services) -> WorkflowList:
    catalog = services.catalog
    return WorkflowList(
        workflows=[_summary(services, catalog.workflows[name]) for name in sorted(catalog.workflows)],
        problems=[
            ProblemReply(
                file=Path(file).name,
                message=problem.message,
                severity=problem.severity,
                path=".".join(map(str, problem.path)),
                line=problem.line,
                column=problem.column,
            )
            for file, problems in catalog.problems.items()
            for problem in problems
        ],
    )


def _summary(services: Services, workflow: Workflow) -> WorkflowSummary:
    return WorkflowSummary(
        workflow_id=workflow.workflow_id,
        name=workflow.name,
        version=workflow.version,
        description=workflow.description,
        is_active=workflow.is_active,
        node_count=len(workflow.nodes),
        # Do not reveal the paths of the files.
        source=Path(services.catalog.sources[workflow.workflow_id]).name,
    )
