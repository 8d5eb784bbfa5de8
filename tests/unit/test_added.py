"""Added nodes are encoded and decoded; malformed ones are refused with the place."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from dagmaster.errors import Invalid
from dagmaster.model.added_nodes import (
    AddedDependency,
    AddedGroup,
    AddedNode,
    added_id,
    awaited,
    fill_in,
    may_add,
    result_of,
)
from dagmaster.model.dynamic_nodes import MAX_SLICE_BYTES, Slice, encode_slices, read_slice
from dagmaster.model.retry import RetryPolicy


def read(document: Any) -> Slice:
    return read_slice(orjson.dumps(document))


def test_encoded_slices_are_decoded_unchanged():
    nodes = (
        AddedNode("a.1", "pkg.mod:work", {"x": [1, {"y": None}]}, ("a",), queue="q", task=11, group=7, label="first"),
        AddedNode("a.2", "work", {"x": result_of("a.1")}, timeout_seconds=5, retry=RetryPolicy(max_attempts=1)),
        AddedNode("a.3", type="gate", after=("a.1", "a.2")),
    )
    groups = (AddedGroup(7, "inner", 8), AddedGroup(8, "outer"))
    dependencies = (AddedDependency(11, "task", 7, "group"), AddedDependency("a.1", "task", "a.2", "task"))
    [body] = encode_slices(nodes, groups, dependencies)
    assert read_slice(body) == Slice(nodes, groups, dependencies)


def test_default_values_are_not_encoded():
    [body] = encode_slices([AddedNode("a.1", "work")])
    assert orjson.loads(body) == {"nodes": [{"id": "a.1", "params": {}, "type": "task", "handler": "work"}]}


def test_many_nodes_are_split_into_slices():
    nodes = [AddedNode(f"a.{n}", "work") for n in range(2500)]
    slices = encode_slices(nodes, [AddedGroup(1, "g")], [AddedDependency(1, "group", 2, "task")])
    parts = [read_slice(body) for body in slices]
    assert [len(part.nodes) for part in parts] == [1000, 1000, 500]
    assert [node for part in parts for node in part.nodes] == nodes
    assert ([len(part.groups) for part in parts], [len(part.dependencies) for part in parts]) == ([1, 0, 0], [0, 0, 1])


def test_slices_fit_a_request_whatever_their_parameters():
    large = [AddedNode(f"a.{n}", "work", {"x": "y" * (MAX_SLICE_BYTES // 3)}) for n in range(5)]
    assert [len(read_slice(body).nodes) for body in encode_slices(large)] == [2, 2, 1]


def test_groups_alone_are_a_slice():
    [body] = encode_slices([], [AddedGroup(1, "g")])
    assert read_slice(body) == Slice(groups=(AddedGroup(1, "g"),))


def test_nodes_are_sorted_by_dependency():
    nodes = [
        AddedNode("a.3", "work", after=("a.2", "elsewhere")),
        AddedNode("a.2", "work", {"x": result_of("a.1")}),
        AddedNode("a.1", "work"),
    ]
    [body] = encode_slices(nodes)
    assert [node.node_id for node in read_slice(body).nodes] == ["a.1", "a.2", "a.3"]


def test_a_cycle_is_refused():
    nodes = [AddedNode("a.1", "work", after=("a.2",)), AddedNode("a.2", "work", {"x": [result_of("a.1")]})]
    with pytest.raises(Invalid, match=r"wait for each other: a\.\d -> a\.\d -> a\.\d"):
        encode_slices(nodes)


def test_duplicate_ids_are_refused():
    with pytest.raises(Invalid, match="the same id"):
        encode_slices([AddedNode("a.1", "work"), AddedNode("a.1", "other")])


def test_parameters_that_are_not_json_are_refused():
    with pytest.raises(Invalid, match=r"the parameters of a\.1 cannot be written as JSON"):
        encode_slices([AddedNode("a.1", "work", {"x": object()})])


def test_ids_start_with_the_adding_node():
    assert added_id("a", 3) == "a.3"
    assert added_id("a.3", "x") == "a.3.x"
    assert added_id(None, 247845805292758904) == "added.247845805292758904"


def test_a_long_id_is_shortened_and_stays_unique():
    first, second = added_id("a" * 48, "b" * 30 + "1"), added_id("a" * 48, "b" * 30 + "2")
    assert len(first) == 53 and first != second
    assert first[:41] == "a" * 40 + "~"
    deep = "a"
    for _ in range(60):
        deep = added_id(deep, 1)
        assert len(deep) <= 64


@pytest.mark.parametrize(
    ("adder", "name"),
    [("a", "1"), ("a", "x" * 80), ("f__3", "1"), (None, "5"), ("a" * 48, "x" * 20), ("a.1", "y" * 70)],
)
def test_a_node_may_add_ids_with_its_own_prefix(adder: str | None, name: str):
    assert may_add(adder, added_id(adder, name))


@pytest.mark.parametrize(("adder", "node_id"), [("a", "a"), ("a", "ab.1"), ("a", "b.1"), (None, "a.1"), ("added", "x")])
def test_a_node_may_add_no_other_ids(adder: str | None, node_id: str):
    assert not may_add(adder, node_id)


def test_result_references_are_found_and_resolved_at_any_depth():
    params = {
        "a": result_of("n.1"),
        "b": [{"c": (result_of("n.2"),)}],
        "d": {"$result": "n.3", "e": 1},
        "f": {"$result": 1},
    }
    node = AddedNode("n.9", "work", params, ("n.0", "n.1"))
    assert awaited(node) == ("n.0", "n.1", "n.2")
    assert fill_in(params, {"n.1": 1, "n.2": [2]}) == {
        "a": 1,
        "b": [{"c": [[2]]}],
        "d": {"$result": "n.3", "e": 1},
        "f": {"$result": 1},
    }


def test_snowflakes_may_be_strings():
    [node] = read({"nodes": [{"id": "a.1", "handler": "work", "task": "247845805292758904", "group": 7}]}).nodes
    assert (node.task, node.group) == (247845805292758904, 7)


def test_a_copy_computes_its_references_again():
    assert replace(AddedNode("a.1", "work"), params={"x": result_of("a.0")}).refs == ("a.0",)


NODE = {"id": "a.1", "handler": "work"}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "must be an object with the keys"),
        ({"node": []}, "must be an object with the keys"),
        ({"nodes": {}}, "nodes must be a list"),
        ({"nodes": [7]}, r"nodes\[0\] must be an object"),
        ({"nodes": [NODE, {**NODE, "hander": 1}]}, r"nodes\[1\] has the unknown key 'hander'"),
        ({"nodes": [{"handler": "work"}]}, r"nodes\[0\]\.id must be a node id"),
        ({"nodes": [{**NODE, "id": "a b"}]}, "must be a node id"),
        ({"nodes": [{**NODE, "id": "x" * 65}]}, "must be a node id"),
        ({"nodes": [{**NODE, "id": "a\n"}]}, "must be a node id"),
        ({"nodes": [{"id": "a.1"}]}, "a task needs a handler"),
        ({"nodes": [{**NODE, "type": "gate"}]}, "a gate has none"),
        ({"nodes": [{**NODE, "type": "fan_out"}]}, "type must be task or gate"),
        ({"nodes": [{**NODE, "handler": 3}]}, "handler must be a string"),
        ({"nodes": [{**NODE, "handler": "x" * 129}]}, "at most 128 characters"),
        ({"nodes": [{**NODE, "params": []}]}, "params must be an object"),
        ({"nodes": [{**NODE, "params": {"x": {"$result": "a b"}}}]}, "the reference to a result must be a node id"),
        ({"nodes": [{**NODE, "after": "a"}]}, "after must be a list"),
        ({"nodes": [{**NODE, "after": [1]}]}, "after must be a node id"),
        ({"nodes": [{**NODE, "timeout_seconds": 0}]}, "between 1 and 86400 seconds"),
        ({"nodes": [{**NODE, "timeout_seconds": True}]}, "between 1 and 86400 seconds"),
        ({"nodes": [{**NODE, "retry": {"max_attempts": -1}}]}, "the retry policy max_attempts of an added node"),
        ({"nodes": [{**NODE, "retry": 3}]}, "the retry policy"),
        ({"nodes": [{**NODE, "task": -1}]}, "task must be a snowflake id"),
        ({"nodes": [{**NODE, "task": 2**63}]}, "task must be a snowflake id"),
        ({"nodes": [{**NODE, "task": "1e5"}]}, "task must be a snowflake id"),
        ({"nodes": [{**NODE, "params": {"x": "\0"}}]}, "contain a NUL character"),
        ({"nodes": [NODE] * 1001}, "a slice may have at most 1000 nodes, not 1001"),
        ({"groups": [{"name": "g"}]}, r"groups\[0\]\.id is missing"),
        ({"groups": [{"id": 1}]}, r"groups\[0\]\.name must be a string"),
        ({"groups": [1]}, r"groups\[0\] must be an object"),
        ({"dependencies": [[1, "task", 2, "node"]]}, r"dependencies\[0\] must be"),
        ({"dependencies": [[1, "task", None, "task"]]}, r"dependencies\[0\] must be"),
    ],
)
def test_malformed_slices_are_refused_with_the_place(document: Any, reason: str):
    with pytest.raises(Invalid, match=reason):
        read(document)


def test_an_escaped_nul_sequence_is_data():
    [node] = read({"nodes": [{**NODE, "params": {"x": "\\u0000"}}]}).nodes
    assert node.params == {"x": "\\u0000"}


def test_invalid_json_is_refused():
    with pytest.raises(Invalid, match="not valid JSON"):
        read_slice(b"{rubbish")


def test_json_nested_too_deeply_is_refused():
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    with pytest.raises(Invalid, match="nested more than 100 deep"):
        read({"nodes": [{**NODE, "params": {"x": deep}}]})
