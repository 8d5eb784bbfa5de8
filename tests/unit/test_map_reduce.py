"""The tasks that map and reduce create for a list."""

from typing import Any

import pytest

from dagmaster.data.references import ObjectRef, ViewRef
from dagmaster.errors import Invalid
from dagmaster.handlers import Permanent
from dagmaster.model.added_nodes import awaited
from dagmaster.model.params import FIRST_PARAMETER
from dagmaster.python.apply_items import create_task
from dagmaster.python.graphs import Task
from dagmaster.python.map_reduce import map as map_chunks
from dagmaster.python.map_reduce import reduce as reduce_layers
from dagmaster.python.node_plans import Numbers, Planner
from dagmaster.python.signatures import Signature
from dagmaster.python.tasks import task


@task(queue="heavy", retries=7, timeout=60)
def work(rows: list[int], factor: int = 1) -> int:
    return factor * sum(rows)


@task
def alone() -> None: ...


def arguments(group) -> list[dict[str, Any]]:
    return [task.kwargs for task in group.tasks() if task is not group.result]


def planned(*items):
    return Planner(items, 7, "entry", Numbers(), lambda task: task.queue).plan()


def test_a_list_is_split_into_chunks_and_collected_by_one_task():
    group = map_chunks(work, range(5), 2, factor=3)
    assert arguments(group) == [{"rows": rows, "factor": 3} for rows in ([0, 1], [2, 3], [4])]
    collector = planned(group).nodes[-1]
    assert collector.handler == "collect"
    assert collector.params == {"values": [{"$result": f"entry.{n}"} for n in (1, 2, 3)]}


def test_an_empty_list_is_not_collected():
    group = map_chunks(work, [])
    assert list(group.tasks()) == [group.result]
    assert group.result.kwargs == {"values": []}


def test_a_view_is_split_by_offset_and_limit():
    view = ViewRef(table_id=9, offset=100, limit=25_000, where={"a": 1})
    chunks = [kwargs["rows"] for kwargs in arguments(map_chunks(work, view))]
    assert [(chunk.offset, chunk.limit) for chunk in chunks] == [(100, 10_000), (10_100, 10_000), (20_100, 5_000)]
    assert {(chunk.table_id, chunk.object_type) for chunk in chunks} == {(9, "view")}
    assert all(chunk.where == {"a": 1} for chunk in chunks)
    assert planned(map_chunks(work, view)).nodes[0].params["rows"] == {
        "object_type": "view",
        "table_id": 9,
        "offset": 100,
        "limit": 10_000,
        "where": {"a": 1},
    }


def test_a_table_needs_its_number_of_rows():
    with pytest.raises(Invalid, match=r"map ViewRef\(table_id=9, limit=ROWS\)"):
        map_chunks(work, ObjectRef(table_id=9))


def test_results_of_other_tasks_can_be_mapped_but_not_chunked():
    parts = [create_task(work, {"rows": [n]}) for n in range(3)]
    group = map_chunks(work, parts, 2)
    assert [len(kwargs["rows"]) for kwargs in arguments(group)] == [2, 1]
    assert awaited(planned(*parts, group).nodes[3]) == ("entry.1", "entry.2")
    with pytest.raises(Invalid, match="map it in a task that receives it"):
        map_chunks(work, parts[0])  # type: ignore[arg-type]


def test_reduce_builds_layers_until_one_value_is_left():
    group = reduce_layers(work, list(range(10)), fan_in=3)
    plan = planned(group)
    assert [len(node.params["rows"]) for node in plan.nodes] == [3, 3, 3, 1, 3, 1, 2]
    assert plan.node_ids[group.result] == plan.nodes[-1].node_id


def test_one_value_or_none_is_reduced_once():
    for values in ([], [5]):
        [only] = reduce_layers(work, values).tasks()
        assert only.kwargs == {"rows": values}


def test_reduce_includes_the_tasks_of_map():
    chunks = map_chunks(work, range(4), 1)
    reduced = reduce_layers(work, chunks, fan_in=4)
    assert chunks.group is reduced
    assert {task.handler for task in reduced.tasks()} == {work.handler, "collect"}
    assert awaited(planned(reduced).nodes[-1]) == ("entry.1", "entry.2", "entry.3", "entry.4")


def test_tasks_have_the_options_of_their_decorator():
    [first, _] = map_chunks(work, [1]).tasks()
    assert (first.queue, first.timeout_seconds, first.retry.max_attempts) == ("heavy", 60, 7)
    other = create_task(work, {"rows": []}, queue="light", timeout=5, retries=0)
    assert (other.queue, other.timeout_seconds, other.retry.max_attempts) == ("light", 5, 0)


@pytest.mark.parametrize("callback", ["echo", alone])
def test_only_a_function_with_a_first_parameter_can_be_mapped(callback):
    with pytest.raises(Invalid, match="first parameter"):
        map_chunks(callback, [1])


def test_a_local_name_can_be_mapped():
    [mapped, *_] = map_chunks(work.handler, [1]).items
    assert isinstance(mapped, Task) and mapped.handler == work.handler


def test_a_name_known_only_to_workers_is_mapped_by_position():
    [first, _] = map_chunks("far.module:function", [1, 2], add=3).tasks()
    assert (first.handler, first.kwargs) == ("far.module:function", {FIRST_PARAMETER: [1, 2], "add": 3})


def test_the_first_argument_is_passed_to_the_first_parameter():
    def take(rows, add=0):
        return rows, add

    read = Signature(take).read({FIRST_PARAMETER: [1], "add": 2}, print)
    assert read == ([], {"rows": [1], "add": 2})
    with pytest.raises(Permanent, match="first parameter"):
        Signature(take).read({FIRST_PARAMETER: [1], "rows": 2}, print)


@pytest.mark.parametrize(
    "make",
    [
        lambda: map_chunks(work, [1], 0),
        lambda: map_chunks(work, [1], chunk_rows=0),
        lambda: reduce_layers(work, [1], fan_in=1),
    ],
)
def test_sizes_must_terminate(make):
    with pytest.raises(Invalid, match="or more"):
        make()


def test_lists_have_no_rows():
    with pytest.raises(Invalid, match="chunk_rows is for tables"):
        map_chunks(work, [1], chunk_rows=5)


def test_the_group_returned_by_map_is_a_value():
    chunks = map_chunks(work, [1, 2])
    after = Task("work", {"all": chunks})
    assert after.previous == (chunks.result,)
