"""Add the parts that authors may leave out: the start node, the end node, and the queues."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dagmaster.authoring.dialects import Draft
from dagmaster.authoring.templates import rename_links
from dagmaster.model.checks import find_problems
from dagmaster.model.contracts import Contracts
from dagmaster.model.edges import find_inbound, find_targets
from dagmaster.model.params import find_param_problems
from dagmaster.model.problems import Problem
from dagmaster.model.workflow import ChildTask, EndNode, FanOutNode, Node, StartNode, TaskNode, Workflow
from dagmaster.settings import Settings

START: Final = "START"
END: Final = "END"
DEFAULT_QUEUE: Final = "default"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueueRules:
    """`handler_queues` maps the known handlers to their registered queues; None if the handlers are unknown.

    `is_open`: workers elsewhere may have others, so an unknown handler is only a warning. Literal parameters are
    checked against the schemas in `contracts`.
    """

    handler_queues: Mapping[str, str | None] | None = None
    default_queue: str | None = None
    is_open: bool = False
    contracts: Contracts = field(default_factory=dict)

    def find_problems(self, workflow: Workflow, more_handlers: Collection[str] = (), **options: Any) -> list[Problem]:
        known = None if self.handler_queues is None else {*self.handler_queues, *more_handlers}
        problems = find_problems(workflow, known_handlers=known, **options)
        problems += find_param_problems(workflow, self.contracts)
        return [
            replace(problem, severity="warning") if self.is_open and problem.is_about_handler else problem
            for problem in problems
        ]

    def find_queue(self, task: ChildTask) -> str | None:
        registered = (self.handler_queues or {}).get(task.handler)
        return task.queue or registered or self.default_queue


def default_queue(settings: Settings) -> str | None:
    """The queue of tasks without one. A shared server has none unless it is configured."""
    return settings.worker_queue if settings.database_dsn() else own_queue(settings)


def own_queue(settings: Settings) -> str:
    """The same with a fallback, for everything that runs in one process or on one data folder."""
    if settings.worker_queue:
        return settings.worker_queue
    log.info("tasks without a queue use the queue %r; set DAGMASTER_WORKER_QUEUE to change it", DEFAULT_QUEUE)
    return DEFAULT_QUEUE


def resolve_queues(workflow: Workflow, rules: QueueRules) -> Workflow:
    """Write the queue of every task into the workflow, if it can be determined."""
    nodes = {node_id: _with_queue(node, rules) for node_id, node in workflow.nodes.items()}
    return workflow.model_copy(update={"nodes": nodes})


def _with_queue(node: Node, rules: QueueRules) -> Node:
    match node:
        case TaskNode():
            return node.model_copy(update={"queue": rules.find_queue(node)})
        case FanOutNode():
            task = node.task.model_copy(update={"queue": rules.find_queue(node.task)})
            return node.model_copy(update={"task": task})
        case _:
            return node


def alias_ends(drafts: dict[str, Draft]) -> None:
    """`next: END` means the end node, whatever its id; `START` the start node."""
    aliases = {}
    for alias, kind in ((START, "start"), (END, "end")):
        node_ids = [node_id for node_id, draft in drafts.items() if draft.type == kind]
        if alias not in drafts and len(node_ids) == 1:
            aliases[alias] = node_ids[0]
    for draft in drafts.values() if aliases else ():
        rename_links(draft, lambda name: aliases.get(name, name))


def add_ends(nodes: Mapping[str, Node], heads: Collection[str] = ()) -> dict[str, Node]:
    """The nodes with a start before those without predecessors, and an end after those without successors.

    Chains that start at `heads` are finalizers, and have neither.
    """
    complete = dict(nodes)
    chained = _chained(nodes, heads)
    if END not in complete and not any(isinstance(node, EndNode) for node in complete.values()):
        complete[END] = EndNode()
        for node_id, targets in find_targets(find_inbound(complete)).items():
            if not targets and node_id != END and node_id not in chained:
                complete[node_id] = complete[node_id].model_copy(update={"next": (*complete[node_id].next, END)})
    if START not in complete and not any(isinstance(node, StartNode) for node in complete.values()):
        inbound = find_inbound(complete)
        roots = tuple(node_id for node_id in complete if not inbound[node_id].sources and node_id not in chained)
        complete = {START: StartNode(next=roots), **complete}
    return complete


def _chained(nodes: Mapping[str, Node], heads: Collection[str]) -> set[str]:
    if not heads:
        return set()
    targets, chained = find_targets(find_inbound(nodes)), set[str]()
    stack = [head for head in heads if head in nodes]
    while stack:
        node_id = stack.pop()
        if node_id not in chained:
            chained.add(node_id)
            stack += targets[node_id]
    return chained
