"""Fan-out and fan-in: children are created in batches, limited by `max_parallel`, and aggregated in order."""

from typing import Any

import pytest
from engine_bench import AT_ONCE, JOB, NO_RETRY, Bench, choose, end, fan_in, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import Expand, TaskCompleted
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import JobStatus, NodeStatus

COMPLETED, DISPATCHED = NodeStatus.COMPLETED, NodeStatus.DISPATCHED


def fanned(
    source: Any = "{{ inputs.items }}", items: Any = (1, 2, 3), rules: Rules | None = None, **fields: Any
) -> Bench:
    aggregation = fields.pop("aggregation", "collect")
    nodes: dict[str, Any] = {"f": fan_out(source, **fields), "g": fan_in("f", aggregation=aggregation), "end": end("g")}
    return Bench({"items": list(items) if isinstance(items, tuple) else items}, rules, **nodes).start()


def complete_all(bench: Bench, *outputs: Any) -> None:
    for index, output in enumerate(outputs):
        bench.complete(f"f__{index}", output)


def test_a_fan_out_creates_one_child_per_item():
    bench = fanned(items=("a", {"b": [1]}, None))
    assert bench.waiting == [f"{JOB}_f__0_0", f"{JOB}_f__1_0", f"{JOB}_f__2_0"]
    rows = [bench.store.nodes[f"f__{index}"] for index in range(3)]
    assert [(row.parent, row.place) for row in rows] == [("f", 0), ("f", 1), ("f", 2)]
    assert [bench.params(row.node_id)["item"] for row in rows] == ["a", {"b": [1]}, None]
    assert bench.output("f") == {"fan_out_count": 3, "child_node_ids": ["f__0", "f__1", "f__2"]}
    assert bench.data("f", "node_completed")["fan_out_count"] == 3


def test_children_see_item_index_total_inputs_and_nodes():
    params = {
        "item": "{{ item.name }}",
        "index": "{{ index }}",
        "of": "{{ fan_out.index }}/{{ fan_out.total }}",
        "same": "{{ fan_out.item.name }}",
        "input": "{{ inputs.items[0].name }}",
        "before": "{{ nodes.a.output.x }}",
    }
    items = [{"name": "one"}, {"name": "two"}]
    bench = Bench(
        {"items": items}, a=task(), f=fan_out("{{ inputs.items }}", "a", child={"params": params}), end=end("f")
    ).start()
    bench.complete("a", {"x": 9})
    assert bench.params("f__1") == {
        "item": "two",
        "index": 1,
        "of": "1/2",
        "same": "two",
        "input": "one",
        "before": 9,
    }


def test_template_syntax_in_an_item_is_not_evaluated():
    bench = fanned(items=("{{ inputs.secret }}",))
    assert bench.params("f__0") == {"item": "{{ inputs.secret }}"}


def test_successors_wait_for_every_child():
    bench = fanned()
    complete_all(bench, {}, {})
    assert (bench.of("f"), bench.of("g")) == (COMPLETED, NodeStatus.PENDING)
    bench.complete("f__2")
    assert bench.status is JobStatus.COMPLETED


def test_an_empty_list_completes_at_once():
    bench = fanned(items=())
    assert bench.status is JobStatus.COMPLETED
    assert bench.output("f") == {"fan_out_count": 0, "child_node_ids": []}
    assert bench.output("g") == {"results": [], "count": 0, "failed": 0}


@pytest.mark.parametrize(("source", "kind"), [({"a": 1}, "dict"), ("text", "str"), (3, "int")])
def test_a_source_that_is_not_a_list_fails_before_children_are_created(source: Any, kind: str):
    bench = fanned("{{ inputs.items }}", items=source)
    assert bench.events("f") == ["ready", "failed"]
    assert bench.status is JobStatus.FAILED
    assert f"must be a list, this is {kind}" in str(bench.error)
    assert not [node_id for node_id in bench.store.nodes if "__" in node_id]


def test_a_source_that_is_not_a_list_is_retried_if_the_policy_names_it():
    policy = RetryPolicy(max_attempts=1, initial_delay_seconds=10, on=["ExpressionFailed"])
    bench = fanned(items={"no": "list"}, retry=policy)
    assert bench.events("f") == ["ready", "failed", "retrying"]
    bench.wait(10)
    assert bench.events("f")[3:] == ["failed"]
    assert bench.status is JobStatus.FAILED


def test_a_list_over_the_limit_is_refused():
    bench = fanned(items=tuple(range(5)), rules=Rules(max_fan_out=4))
    assert "5 items is over the limit of 4" in str(bench.error)


# Aggregation


@pytest.mark.parametrize(
    ("aggregation", "outputs", "expected"),
    [
        ("collect", [{"a": 1}, [2], "x"], {"results": [{"a": 1}, [2], "x"], "count": 3, "failed": 0}),
        ("concat", [[1, 2], [], [[3]]], {"results": [1, 2, [3]], "count": 3, "failed": 0}),
        (
            "concat",
            [{"rows": [1], "n": 5, "more": [2]}, {"n": 6}, 7],
            {"results": [1, 5, 2, {"n": 6}, 7], "count": 5, "failed": 0},
        ),
        ("concat", [{"l": [3], "s": "x"}, "y", 0], {"results": [3, "x", "y", 0], "count": 4, "failed": 0}),
        ("sum", [{"a": 1, "b": 2.5, "t": "x"}, [3, "y"], 4], {"total": 10.5, "count": 3, "failed": 0}),
        ("sum", [{"ok": True}, [False, True], {"n": 1}], {"total": 1, "count": 3, "failed": 0}),
        ("first", [{"a": 1}, {"a": 2}, {"a": 3}], {"result": {"a": 1}, "count": 3, "failed": 0}),
        ("last", [{"a": 1}, {"a": 2}, {"a": 3}], {"result": {"a": 3}, "count": 3, "failed": 0}),
        (
            "merge",
            [{"a": 1, "b": 1}, {"b": 2}, {"c": {"d": 3}}],
            {"result": {"a": 1, "b": 2, "c": {"d": 3}}, "count": 3, "failed": 0},
        ),
    ],
)
def test_a_fan_in_aggregates(aggregation: str, outputs: list[Any], expected: dict[str, Any]):
    bench = fanned(aggregation=aggregation)
    complete_all(bench, *outputs)
    assert bench.output("g") == expected
    assert bench.status is JobStatus.COMPLETED


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("collect", {"results": [], "count": 0, "failed": 0}),
        ("concat", {"results": [], "count": 0, "failed": 0}),
        ("sum", {"total": 0, "count": 0, "failed": 0}),
        ("first", {"result": None, "count": 0, "failed": 0}),
        ("last", {"result": None, "count": 0, "failed": 0}),
        ("merge", {"result": {}, "count": 0, "failed": 0}),
    ],
)
def test_a_fan_in_of_an_empty_fan_out(aggregation: str, expected: dict[str, Any]):
    assert fanned(items=(), aggregation=aggregation).output("g") == expected


def test_a_fan_in_aggregates_in_list_order():
    bench = fanned(items=tuple(range(12)))
    for index in reversed(range(12)):
        bench.complete(f"f__{index}", index)
    assert bench.output("g")["results"] == list(range(12))


def test_merging_a_non_object_fails_the_fan_in():
    bench = fanned(items=(1, 2), aggregation="merge")
    complete_all(bench, {"a": 1}, [2])
    assert bench.events("g") == ["ready", "failed"]
    assert "the output of child 1 is list" in str(bench.error)


def test_a_fan_in_of_a_skipped_fan_out_is_empty():
    route = choose("inputs.n", is_1=("f",), default=("z",))
    bench = Bench(
        {"n": 0},
        route=route,
        f=fan_out([1, 2]),
        z=task(),
        g=fan_in("f", source_node="f").model_copy(update={"depends_on": task("f", "z").depends_on}),
        end=end("g"),
    ).start()
    bench.complete("z")
    assert bench.output("g") == {"results": [], "count": 0, "failed": 0}


def test_the_jobs_result_excludes_children():
    bench = fanned(items=(1,))
    bench.complete("f__0", {"x": 1})
    assert set(bench.result) == {"f", "g", "_provenance"}


def test_a_permanently_failed_child_fails_the_job():
    bench = fanned()
    bench.complete("f__0")
    bench.fail("f__1", "broken")
    assert bench.error == "node f__1 failed: broken"
    assert (bench.of("f__0"), bench.of("f__2"), bench.of("g")) == (COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED)


# max_parallel


def in_flight(bench: Bench) -> set[str]:
    return bench.in_state(DISPATCHED) | bench.in_state(NodeStatus.RUNNING)


def test_max_parallel_limits_running_children():
    bench = fanned(items=tuple(range(5)), max_parallel=2)
    assert in_flight(bench) == {"f__0", "f__1"}
    bench.begin("f__0")
    assert in_flight(bench) == {"f__0", "f__1"}
    bench.complete("f__1")
    assert in_flight(bench) == {"f__0", "f__2"}
    bench.complete("f__0")
    assert in_flight(bench) == {"f__2", "f__3"}


def test_waiting_children_start_in_order():
    bench = fanned(items=tuple(range(4)), max_parallel=1)
    for index in range(4):
        bench.begin(f"f__{index}")
        assert in_flight(bench) == {f"f__{index}"}
        bench.complete(f"f__{index}")
    assert bench.status is JobStatus.COMPLETED


def test_a_child_waiting_for_a_retry_frees_its_slot():
    slow = RetryPolicy(max_attempts=1, initial_delay_seconds=60)
    bench = fanned(items=(1, 2, 3), max_parallel=1, child={"retry": slow})
    bench.fail("f__0")
    assert in_flight(bench) == {"f__1"}
    bench.wait(60)
    assert in_flight(bench) == {"f__1"}
    for name in ("f__1", "f__2", "f__0"):
        bench.complete(name)
    assert bench.status is JobStatus.COMPLETED


def test_a_child_with_failing_parameters_frees_its_slot():
    """Otherwise the rest would wait until its retry is due."""
    slow = RetryPolicy(max_attempts=1, initial_delay_seconds=60, on=["ExpressionFailed"])
    child = {"params": {"x": "{{ item.x }}"}, "retry": slow}
    bench = fanned(items=({"x": 0}, {}, {"x": 2}), max_parallel=1, child=child)
    bench.complete("f__0")
    assert bench.events("f__1") == ["ready", "failed", "retrying"]
    assert in_flight(bench) == {"f__2"}


def test_a_lost_worker_frees_a_slot():
    bench = fanned(items=(1, 2, 3), max_parallel=1, child={"retry": AT_ONCE})
    bench.begin("f__0")
    bench.lose("f__0")
    assert in_flight(bench) == {"f__1"}


def test_max_parallel_holds_after_a_take_over():
    bench = fanned(items=tuple(range(5)), max_parallel=2)
    bench.complete("f__0")
    bench.restart()
    assert in_flight(bench) == {"f__1", "f__2"}
    for index in (1, 2, 3, 4):
        bench.complete(f"f__{index}")
    assert bench.status is JobStatus.COMPLETED


def test_each_fan_out_has_its_own_limit():
    bench = Bench(f=fan_out([1, 2], max_parallel=1), h=fan_out([1, 2], max_parallel=1), end=end("f", "h")).start()
    assert in_flight(bench) == {"f__0", "h__0"}


# Batches


def sliced(count: int, size: int, **nodes: Any) -> Bench:
    """Only the first batch is created."""
    nodes.setdefault("end", end("f"))
    bench = Bench({"items": list(range(count))}, Rules(slice_size=size), f=fan_out("{{ inputs.items }}"), **nodes)
    bench.expands = False
    return bench.start()


def test_a_long_list_is_expanded_in_batches():
    bench = sliced(10, size=4)
    slices = [len(bench.changes.created)]
    while bench.changes.follow_ups:
        slices.append(len(bench.send(*bench.changes.follow_ups).created))
    assert slices == [4, 4, 2]
    assert bench.of("f") is COMPLETED


def test_a_fan_out_completes_only_after_its_last_batch():
    bench = sliced(3, size=2, z=task("f"), end=end("z"))
    assert bench.changes.follow_ups == [Expand("f")]
    bench.complete("f__0")
    bench.complete("f__1")
    assert (bench.of("f"), bench.of("z"), bench.status) == (NodeStatus.RUNNING, NodeStatus.PENDING, JobStatus.RUNNING)
    bench.send(Expand("f"))
    assert (bench.of("f"), bench.of("z")) == (COMPLETED, NodeStatus.PENDING)
    bench.complete("f__2")
    assert bench.of("z") is DISPATCHED


def test_an_expansion_continues_after_a_takeover():
    bench = sliced(5, size=2)
    bench.expands = True
    bench.restart()
    assert bench.in_state(DISPATCHED) == {f"f__{index}" for index in range(5)}
    assert bench.events("f__0").count("ready") == 1


def test_expanding_twice_creates_no_duplicate():
    bench = sliced(5, size=2)
    bench.send(Expand("f"), Expand("f"), Expand("f"))
    assert len([node_id for node_id in bench.store.nodes if node_id.startswith("f__")]) == 5


def test_a_long_list_of_children_is_truncated_in_events():
    bench = fanned(items=tuple(range(2500)), rules=Rules(slice_size=1000))
    output = bench.output("f")
    assert (output["fan_out_count"], len(output["child_node_ids"])) == (2500, 1000)
    assert output["child_node_ids_truncated"] is True


def test_a_retried_child_keeps_its_parameters():
    """They are stored, not evaluated again."""
    bench = fanned(items=("a", "b"), child={"retry": AT_ONCE})
    bench.fail("f__1")
    assert bench.waiting[-1] == f"{JOB}_f__1_1"
    assert bench.params("f__1") == {"item": "b"}


def test_a_report_for_the_fan_out_itself_changes_nothing():
    bench = sliced(3, size=2)
    bench.send(TaskCompleted("f", f"{JOB}_f_0", "forger", bench.now, b"{}"))
    assert bench.of("f") is NodeStatus.RUNNING
    assert not bench.store.results


def test_the_policy_of_the_fan_out_is_not_that_of_its_children():
    bench = fanned(items=(1,), retry=AT_ONCE, child={"retry": NO_RETRY})
    bench.fail("f__0")
    assert bench.status is JobStatus.FAILED
