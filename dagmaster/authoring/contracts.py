"""The contracts of handlers, for submission, validation and display of workflows."""

from collections.abc import Sequence
from dataclasses import replace

from dagmaster.authoring.implicit import QueueRules, default_queue
from dagmaster.handlers import Registry
from dagmaster.model.contracts import Contracts, queues_by_handler
from dagmaster.model.graph import Graph
from dagmaster.model.params import find_param_problems
from dagmaster.model.problems import InvalidWorkflow, Problem
from dagmaster.model.workflow import Workflow
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection
from dagmaster.store.handlers import list_contracts, uniform_handlers


async def known_contracts(conn: Connection, registry: Registry) -> Contracts:
    """Contracts registered by workers take precedence over handlers loaded here, so that submitters all agree."""
    return {**registry.contracts(), **await list_contracts(conn)}


def open_rules(contracts: Contracts, settings: Settings) -> QueueRules:
    """For submission: an unknown handler is allowed, because a worker may register it later."""
    return QueueRules(queues_by_handler(contracts), default_queue(settings), is_open=True, contracts=contracts)


async def check_params(conn: Connection, graph: Graph, contracts: Contracts, settings: Settings) -> list[Problem]:
    """The parameters of a job that some worker might reject. Raise InvalidWorkflow if every worker would.

    A worker's code may be newer or older than the contract: only values that no current worker accepts are errors.
    """
    workflows = [graph.workflow, *(child.workflow for child in graph.called)]
    problems = _find(workflows, contracts)
    if not problems:
        return []
    names = [contract.name for contract in contracts.values()]
    uniform = await uniform_handlers(conn, names, lost_after_seconds=settings.worker_lost_after_seconds)
    judged = _find(
        workflows, {name: replace(known, is_uniform=known.name in uniform) for name, known in contracts.items()}
    )
    if any(problem.is_error for problem in judged):
        raise InvalidWorkflow(judged)
    return judged


def _find(workflows: Sequence[Workflow], contracts: Contracts) -> list[Problem]:
    return [problem for workflow in workflows for problem in find_param_problems(workflow, contracts)]
