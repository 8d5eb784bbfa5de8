"""Workflow files as strings, and their problems."""

from textwrap import dedent

from dagmaster.authoring.yaml import QueueRules, parse_workflow, read_workflow
from dagmaster.model.workflow import (
    Workflow,
)

QUEUES = QueueRules(default_queue="default")


def parse(text: str, queues: QueueRules = QUEUES) -> Workflow:
    return parse_workflow(dedent(text), queues=queues)


def parse_nodes(text: str, inputs: str = "") -> Workflow:
    """Only the nodes are given."""
    body = dedent(text).strip("\n")
    indented = "\n".join(f"  {line}" for line in body.splitlines())
    return parse(f"workflow_id: w\nadditional_inputs: true\n{inputs}\nnodes:\n{indented}\n")


def problems(text: str, queues: QueueRules = QUEUES) -> list[str]:
    """As printed, without the severity of errors."""
    workflow, problems = read_workflow(dedent(text).lstrip("\n"), queues=queues)
    assert (workflow is None) is any(problem.is_error and not problem.is_about_queue for problem in problems)
    return [str(problem).replace(" error:", "") for problem in problems]


def node_problems(text: str, queues: QueueRules = QUEUES) -> list[str]:
    """Only the nodes are given; lines are counted from the first one."""
    mistakes = problems(
        "{workflow_id: w, additional_inputs: true, nodes: {\n" + dedent(text).strip("\n") + "\n}}", queues
    )
    return [message.split(" ", 1)[1] for message in mistakes]


ECHO = """
    workflow_id: echo_test
    name: Echo test
    version: 1
    description: The smallest useful workflow
    inputs:
      message: {type: string, required: true, description: what to say}
    nodes:
      START:
        type: start
        next: echo_handler
      echo_handler:
        type: task
        handler: echo
        queue: light
        timeout_seconds: 60
        retry: {max_attempts: 2, backoff: FIXED, initial_delay_seconds: 1}
        params:
          message: "{{ inputs.message }}"
        next: END
      END:
        type: end
"""
