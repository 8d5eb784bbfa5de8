"""The workflows that are measured."""

from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.workflow import (
    ChildTask,
    EndNode,
    FanInNode,
    FanOutNode,
    InputSpec,
    InputType,
    Node,
    StartNode,
    TaskNode,
    Workflow,
)

QUEUE = "bench"
UNATTENDED = "nobody-consumes-this"
CHAIN_INPUTS = {"message": "hello"}


def chain(steps: int, queue: str = QUEUE) -> Graph:
    """START -> n0 -> n1 -> ... -> END, each step an echo of the input."""
    nodes: dict[str, Node] = {"START": StartNode(next=("n0",)), "END": EndNode()}
    for number in range(steps):
        following = f"n{number + 1}" if number + 1 < steps else "END"
        nodes[f"n{number}"] = TaskNode(
            handler="echo", queue=queue, params={"message": "{{ inputs.message }}"}, next=(following,)
        )
    return compile_graph(
        Workflow(workflow_id=f"chain-{steps}", name="chain", inputs={"message": InputSpec()}, nodes=nodes)
    )


def adding() -> Graph:
    """START -> a task that adds a node for each of the input's items -> END."""
    nodes: dict[str, Node] = {
        "START": StartNode(next=("spread",)),
        "spread": TaskNode(handler="bench.add", queue=QUEUE, params={"items": "{{ inputs.items }}"}, next=("END",)),
        "END": EndNode(),
    }
    inputs = {"items": InputSpec(type=InputType.ARRAY)}
    return compile_graph(Workflow(workflow_id="adding", name="adding", inputs=inputs, nodes=nodes))


def swelling() -> Graph:
    """START -> fan-out of outputs of the sizes in the input -> fan-in that collects -> END."""
    child = ChildTask(handler="bench.swell", queue=QUEUE, params={"size": "{{ item }}"})
    nodes: dict[str, Node] = {
        "START": StartNode(next=("spread",)),
        "spread": FanOutNode(source="{{ inputs.items }}", task=child, next=("gather",)),
        "gather": FanInNode(next=("END",)),
        "END": EndNode(),
    }
    inputs = {"items": InputSpec(type=InputType.ARRAY)}
    return compile_graph(Workflow(workflow_id="swelling", name="swelling", inputs=inputs, nodes=nodes))


def tiles() -> Graph:
    """START -> fan-out of batches of tiles of one raster -> END."""
    params = {"path": "bronze/dem.tif", "profile": "{{ inputs.profile }}", "tiles": "{{ item }}"}
    child = ChildTask(handler="raster.process_tile_batch", queue=QUEUE, params=params)
    nodes: dict[str, Node] = {
        "START": StartNode(next=("spread",)),
        "spread": FanOutNode(source="{{ inputs.batches }}", task=child, next=("END",)),
        "END": EndNode(),
    }
    inputs = {"batches": InputSpec(type=InputType.ARRAY), "profile": InputSpec(type=InputType.OBJECT)}
    return compile_graph(Workflow(workflow_id="tiles", name="tiles", inputs=inputs, nodes=nodes))


def fan(queue: str = QUEUE) -> Graph:
    """START -> fan-out over the input's items -> fan-in that collects -> END."""
    child = ChildTask(handler="echo", queue=queue, params={"item": "{{ item }}"})
    nodes: dict[str, Node] = {
        "START": StartNode(next=("spread",)),
        "spread": FanOutNode(source="{{ inputs.items }}", task=child, next=("gather",)),
        "gather": FanInNode(next=("END",)),
        "END": EndNode(),
    }
    return compile_graph(
        Workflow(
            workflow_id=f"fan-{queue}",
            name="fan",
            inputs={"items": InputSpec(type=InputType.ARRAY)},
            nodes=nodes,
        )
    )
