"""The nodes of a random workflow that may fail, and the outcomes of those without a worker."""

from collections.abc import Mapping
from random import Random

from dagmaster.model.workflow import ApprovalNode, MayFail, Workflow, WorkflowNode


def random_answers(workflow: Workflow, rng: Random) -> dict[str, int]:
    """How many attempts of each step are rejected before one succeeds."""
    answers = {}
    for node_id, node in workflow.nodes.items():
        if isinstance(node, ApprovalNode):
            answers[node_id] = 1_000 if rng.random() < 0.1 else 0
        if isinstance(node, WorkflowNode):
            most = node.retry.max_attempts if node.retry else 0
            answers[node_id] = rng.choice((0, 0, 0, rng.randint(0, most), 1_000 if rng.random() < 0.2 else 0))
    return answers


def is_doomed(node_id: str, workflow: Workflow, answers: Mapping[str, int]) -> bool:
    node = workflow.nodes[node_id]
    most = node.retry.max_attempts if isinstance(node, WorkflowNode) and node.retry else 0
    return answers.get(node_id, 0) > most


def may_fail(node_id: str, workflow: Workflow) -> bool:
    node = workflow.nodes.get(node_id)
    return isinstance(node, MayFail) and node.allow_failure
