"""What authors may leave out: the start node, the end node (ruling C-46), and the queues (ruling C-16)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dagmaster.authoring.dialects import Draft
from dagmaster.authoring.templates import rename_links
from dagmaster.model.edges import find_inbound, find_targets
from dagmaster.model.workflow import ChildTask, EndNode, FanOutNode, Node, StartNode, TaskNode, Workflow

START: Final = "START"
END: Final = "END"


@dataclass(frozen=True)
class QueueRules:
    """`handler_queues` maps the known handlers to the queue they are registered with; None if they are not known."""

    handler_queues: Mapping[str, str | None] | None = None
    default_queue: str | None = None

    def find_queue(self, task: ChildTask) -> str | None:
        registered = (self.handler_queues or {}).get(task.handler)
        return task.queue or registered or self.default_queue


def resolve_queues(workflow: Workflow, rules: QueueRules) -> Workflow:
    """The workflow with every queue written into it, where one can be found."""
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
        found = [node_id for node_id, draft in drafts.items() if draft.type == kind]
        if alias not in drafts and len(found) == 1:
            aliases[alias] = found[0]
    for draft in drafts.values() if aliases else ():
        rename_links(draft, lambda name: aliases.get(name, name))


def add_ends(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """The nodes with a start before those that nothing leads to, and an end behind those that lead to nothing."""
    complete = dict(nodes)
    if END not in complete and not any(isinstance(node, EndNode) for node in complete.values()):
        complete[END] = EndNode()
        for node_id, targets in find_targets(find_inbound(complete)).items():
            if not targets and node_id != END:
                complete[node_id] = complete[node_id].model_copy(update={"next": (*complete[node_id].next, END)})
    if START not in complete and not any(isinstance(node, StartNode) for node in complete.values()):
        inbound = find_inbound(complete)
        roots = tuple(node_id for node_id in complete if not inbound[node_id].sources)
        complete = {START: StartNode(next=roots), **complete}
    return complete
