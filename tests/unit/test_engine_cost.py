"""Work follows changes, not size: a message costs the same in a small and in a large job."""

import gc
import sys
from collections.abc import Callable
from time import process_time
from types import FrameType
from typing import Any

import pytest
from engine_bench import JOB, NO_RETRY, START, fan_out

from dagmaster.engine.change_set import Rules
from dagmaster.engine.decide import decide
from dagmaster.engine.messages import (
    Load,
    Message,
    SignalSent,
    TaskCompleted,
    TaskFailed,
    TaskStarted,
    TimerDue,
    TimerKind,
)
from dagmaster.engine.state import JobState, new_job
from dagmaster.model.compile import compile_graph
from dagmaster.model.expressions import compile_template
from dagmaster.model.graph import Graph, GraphNode, NodeType, TaskSpec
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import EndNode, StartNode, Workflow

SMALL, LARGE = 200, 10_000
RULES = Rules(slice_size=LARGE)


def fanned(size: int, **fields: Any) -> JobState:
    """A fan-out of this many children, all of them dispatched."""
    workflow = Workflow(
        workflow_id="w",
        name="w",
        nodes={
            "start": StartNode(next=("f",)),
            "f": fan_out(list(range(size)), next=("end",), child={"retry": RetryPolicy()}, **fields),
            "end": EndNode(),
        },
    )
    return started(compile_graph(workflow))


def joined(size: int) -> JobState:
    """This many parallel tasks, and an end that waits for all of them; with `any_of` for the last."""
    names = [f"t{index}" for index in range(size)]
    task = TaskSpec("work", "tasks", compile_template({}), 100, RetryPolicy())
    nodes = {
        "start": GraphNode("start", NodeType.START, (), (), tuple(names), NO_RETRY),
        **{name: GraphNode(name, NodeType.TASK, ("start",), (), ("end",), task.retry, task=task) for name in names},
        "end": GraphNode("end", NodeType.END, tuple(names), (), (), NO_RETRY),
    }
    workflow = Workflow(workflow_id="w", name="w", nodes={"start": StartNode()})
    return started(Graph(workflow, nodes, ("start",)))


def started(graph: Graph) -> JobState:
    job = new_job(JOB, graph, {}, START)
    decide(job, [Load()], START, RULES)
    return job


def started_by(node_id: str) -> Message:
    return TaskStarted(node_id, f"{JOB}_{node_id}_0", "worker", START)


def completed(node_id: str) -> Message:
    return TaskCompleted(node_id, f"{JOB}_{node_id}_0", "worker", START, b"{}")


def failed(node_id: str) -> Message:
    return TaskFailed(node_id, f"{JOB}_{node_id}_0", "worker", START, "no luck")


def late(node_id: str) -> Message:
    return TimerDue(TimerKind.DISPATCH, node_id, 0)


def calls(job: JobState, message: Message) -> int:
    """The number of function calls to decide on the message, including those in C."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # Other code may have registered callbacks.
    sys.setprofile(note)
    try:
        decide(job, [message], START, RULES)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def seconds(job: JobState, messages: list[Message]) -> float:
    """The fastest run: slower ones are disturbed by others."""
    fastest = float("inf")
    for message in messages:
        began = process_time()
        decide(job, [message], START, RULES)
        fastest = min(fastest, process_time() - began)
    return fastest


def held_back(size: int) -> JobState:
    return fanned(size, max_parallel=100)


KINDS = {"fan-out": (fanned, "f__{}"), "held back": (held_back, "f__{}"), "join": (joined, "t{}")}


@pytest.fixture(scope="module", params=list(KINDS.values()), ids=list(KINDS))
def pair(request: pytest.FixtureRequest) -> tuple[JobState, JobState, str]:
    """The same job twice, small and large, and the names of its tasks."""
    build, name = request.param
    return build(SMALL), build(LARGE), name


@pytest.mark.parametrize(("message", "first"), [(started_by, 0), (completed, 25), (failed, 50), (late, 75)])
def test_the_cost_of_a_message_does_not_grow_with_the_job(
    pair: tuple[JobState, JobState, str], message: Callable[[str], Message], first: int
):
    small, large, name = pair
    assert len(large.nodes) > LARGE
    warm, sent, *others = [message(name.format(first + index)) for index in range(25)]
    for job in (small, large):
        decide(job, [warm], START, RULES)  # The first message of a process also costs what is cached from then on.
    assert calls(large, sent) == calls(small, sent)
    assert seconds(large, others) < 10 * seconds(small, others) + 0.001


def test_the_cost_of_a_signal_does_not_grow_with_the_children():
    signal = SignalSent("go", None, START)
    decide(fanned(SMALL), [signal], START, RULES)
    assert calls(fanned(LARGE), signal) == calls(fanned(SMALL), signal)


def test_the_timeline_does_not_repeat_long_dependency_lists():
    job = joined(SMALL)
    changes = decide(job, [completed(f"t{index}") for index in range(SMALL)], START, RULES)
    [ready] = [event for event in changes.events if (event.node_id, event.event_type) == ("end", "node_ready")]
    assert ready.event_data == {"dependencies": [f"t{index}" for index in range(100)], "more": SMALL - 100}


def test_a_waiting_job_causes_no_work():
    job = joined(LARGE)
    assert calls(job, TimerDue(TimerKind.TIMEOUT, "t5", 3)) < 20
