"""Submit a workflow that was written in Python to whoever runs jobs."""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.contracts import check_params, known_contracts, open_rules
from dagmaster.authoring.implicit import QueueRules, resolve_queues
from dagmaster.authoring.preparation import prepare
from dagmaster.client import Client
from dagmaster.handlers import load_handlers, registry
from dagmaster.handlers.loader import need_loaded
from dagmaster.model.contracts import Contracts
from dagmaster.model.inputs import check_inputs
from dagmaster.model.workflow import Workflow
from dagmaster.settings import Settings, load_settings
from dagmaster.store.connect import opened
from dagmaster.store.databases import database
from dagmaster.store.submission import NewJob
from dagmaster.store.submission import submit as store_job

log = logging.getLogger(__name__)

Workflows = Mapping[str, Workflow]
NOTHING: Workflows = MappingProxyType({})


def submit(workflow: Workflow, inputs: Mapping[str, Any], called: Workflows = NOTHING) -> int:
    """To the server or the database of the settings. Also in a running loop, which it holds up."""
    need_loaded()
    # A thread of its own: a loop may be running in this one.
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(_submit, workflow, dict(inputs), called, load_settings()).result()


async def submit_async(workflow: Workflow, inputs: Mapping[str, Any], called: Workflows = NOTHING) -> int:
    need_loaded()
    return await asyncio.to_thread(_submit, workflow, dict(inputs), called, load_settings())


def new_job(
    workflow: Workflow,
    inputs: Mapping[str, Any],
    called: Workflows,
    settings: Settings,
    rules: QueueRules,
    contracts: Contracts | None = None,
) -> NewJob:
    """Checked and settled, with a queue for each task. `called` are the workflows that it calls, by id.

    `contracts` are those of the workers, where they run it; otherwise this process does.
    """

    def find(name: str) -> Workflow:
        if name in called:
            return resolve_queues(called[name], rules)
        folder = settings.workflows_dir if settings.workflows_dir.is_dir() else None
        return Catalog(folder, queues=rules).get(name)

    known = registry.contracts() if contracts is None else contracts
    graph = prepare(resolve_queues(workflow, rules), settings, known, find)
    return NewJob(graph, check_inputs(workflow, inputs), secret_key=settings.chosen_secret())


def _submit(workflow: Workflow, inputs: Mapping[str, Any], called: Workflows, settings: Settings) -> int:
    load_handlers(settings.handlers)
    if settings.url is not None:
        key = settings.api_key.get_secret_value() if settings.api_key else None
        with Client(settings.url, key) as client:
            return int(client.submit(workflow.workflow_id, inputs).job_id)
    with database(settings) as dsn:
        return asyncio.run(_store(dsn, workflow, inputs, called, settings))


async def _store(dsn: str, workflow: Workflow, inputs: Mapping[str, Any], called: Workflows, settings: Settings) -> int:
    async with opened(dsn, application="dagmaster python") as conn:
        contracts = await known_contracts(conn, registry)
        job = new_job(workflow, inputs, called, settings, open_rules(contracts, settings), contracts)
        for problem in await check_params(conn, job.graph, contracts, settings):
            log.warning("%s", problem.message)
        submitted = await store_job(conn, job, threshold_seconds=settings.orphan_threshold_seconds, source_app="python")
    return submitted.job_id
