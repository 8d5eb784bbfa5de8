"""A task that adds nodes to its job, on the test bench."""

from typing import Any

from engine_bench import NO_RETRY, Bench, end, task

from dagmaster.engine.messages import TasksAdded
from dagmaster.model.added_nodes import AddedNode


def job(**fields: Any) -> Bench:
    """A job with one running task, `a`, and its end."""
    bench = Bench(a=task(**fields), end=end("a")).start()
    bench.begin("a")
    return bench


def node(name: str, *after: str, **fields: Any) -> AddedNode:
    return AddedNode(name, "work", fields.pop("params", {}), after, retry=fields.pop("retry", NO_RETRY), **fields)


def gate(name: str, *after: str) -> AddedNode:
    return AddedNode(name, after=after, type="gate")


def add(bench: Bench, *nodes: AddedNode, adder: str | None = "a", **fields: Any) -> None:
    task_id = fields.pop("task_id", None) or (bench.task_id(adder) if adder else None)
    bench.send(TasksAdded(adder, task_id, "worker" if adder else None, bench.now, nodes, **fields))


def result_of(name: str) -> dict[str, str]:
    return {"$result_of": name}
