"""A job restored from its rows continues exactly as one in memory."""

from random import Random
from typing import Any

import pytest
from engine_bench import AT_ONCE, Bench, choose, end, fan_in, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.model.states import NODE_IN_FLIGHT, JobStatus, NodeStatus
from simulation import owners
from simulation.run import prepare

NODES: dict[str, Any] = {
    "a": task(retry=AT_ONCE),
    "route": choose("nodes.a.output.n", "a", is_1=("b",), default=("c",)),
    "b": task(retry=AT_ONCE),
    "c": task(retry=AT_ONCE),
    "f": fan_out("{{ inputs.items }}", "a", child={"retry": AT_ONCE}),
    "g": fan_in("f"),
    "d": task("g", any_of=("b", "c"), retry=AT_ONCE),
    "end": end("d"),
}


def statuses(bench: Bench) -> dict[str, NodeStatus]:
    return {node_id: row.status for node_id, row in bench.store.nodes.items()}


def happen(bench: Bench, event: str, node_id: str) -> None:
    match event:
        case "begins":
            bench.begin(node_id)
        case "completes":
            bench.complete(node_id, {"n": 1})
        case "fails":
            bench.fail(node_id)
        case "is lost":
            bench.lose(node_id)


@pytest.mark.parametrize("seed", range(20))
def test_a_job_reloaded_after_every_step_takes_the_same_course(seed: int):
    live = Bench({"items": [1, 2, 3, 4, 5]}, Rules(slice_size=2), **NODES).start()
    read = Bench({"items": [1, 2, 3, 4, 5]}, Rules(slice_size=2), **NODES).start()
    rng = Random(seed)
    while live.status is JobStatus.RUNNING:
        node_id = rng.choice(sorted(live.in_state(*NODE_IN_FLIGHT)))
        event = rng.choice(("begins", "completes", "completes", "fails", "is lost"))
        happen(live, event, node_id)
        happen(read, event, node_id)
        if read.status is JobStatus.RUNNING:
            read.restart()
        assert statuses(read) == statuses(live)
    assert (read.status, read.result.keys()) == (live.status, live.result.keys())
    assert read.events() == live.events()


@pytest.mark.parametrize("seed", range(40))
def test_the_state_equals_the_rows_after_every_commit(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(owners, "COMPARED", 1.0)
    prepare(10_000 + seed).build().run()
