"""Submission of Python workflows."""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.contracts import known_contracts, open_rules
from dagmaster.authoring.implicit import QueueRules, resolve_queues
from dagmaster.client import Client
from dagmaster.client.coroutines import complete
from dagmaster.client.service import HttpService
from dagmaster.handlers import load_handlers, registry
from dagmaster.handlers.loader import need_loaded
from dagmaster.model.contracts import Contracts
from dagmaster.model.workflow import Workflow
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import SubmitRequest
from dagmaster.service.database import DatabaseService
from dagmaster.service.definitions import Definitions
from dagmaster.settings import Settings, load_settings
from dagmaster.store.connect import opened
from dagmaster.store.databases import database

log = logging.getLogger(__name__)

Workflows = Mapping[str, Workflow]
NOTHING: Workflows = MappingProxyType({})


def submit(workflow: Workflow, inputs: Mapping[str, Any], called: Workflows = NOTHING) -> int:
    """Submit to the server or the database of the settings. Callable in a running loop, which it blocks."""
    need_loaded()
    # In a thread: a loop may be running in this one.
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(_submit, workflow, dict(inputs), called, load_settings()).result()


async def submit_async(workflow: Workflow, inputs: Mapping[str, Any], called: Workflows = NOTHING) -> int:
    need_loaded()
    return await asyncio.to_thread(_submit, workflow, dict(inputs), called, load_settings())


def definitions_of(
    workflow: Workflow, called: Workflows, settings: Settings, rules: QueueRules, contracts: Contracts
) -> Definitions:
    """The definitions of a workflow and of those that it calls; others are loaded from the folder of workflows."""

    def find(name: str) -> Workflow:
        if name in called:
            return resolve_queues(called[name], rules)
        folder = settings.workflows_dir if settings.workflows_dir.is_dir() else None
        return Catalog(folder, queues=rules).get(name)

    return Definitions(settings, contracts, lambda _: resolve_queues(workflow, rules), find)


def _submit(workflow: Workflow, inputs: Mapping[str, Any], called: Workflows, settings: Settings) -> int:
    load_handlers(settings.handlers)
    request = SubmitRequest(workflow.workflow_id, inputs)
    if settings.url is not None:
        key = settings.api_key.get_secret_value() if settings.api_key else None
        with Client(settings.url, key) as client:
            return complete(HttpService(client.requests).submit(request)).job_id
    with database(settings) as dsn:
        return asyncio.run(_store(dsn, workflow, called, request, settings))


async def _store(dsn: str, workflow: Workflow, called: Workflows, request: SubmitRequest, settings: Settings) -> int:
    async with opened(dsn, application="dagmaster python") as conn:
        contracts = await known_contracts(conn, registry)
        definitions = definitions_of(workflow, called, settings, open_rules(contracts, settings), contracts)
        context = ServiceContext(conn, settings, source_app="python")
        result = await DatabaseService(context, definitions).submit(request)
    for warning in result.warnings:
        log.warning("%s", warning)
    return result.job_id
