"""Tasks and groups before they run: the meaning of the operators, and the resulting nodes."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from engine_bench import JOB as BENCH_JOB
from engine_bench import Bench, end
from engine_bench import task as an_entry
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.engine.messages import TasksAdded
from dagmaster.errors import Conflict, Invalid
from dagmaster.model.added_nodes import AddedNode, awaited
from dagmaster.model.dynamic_nodes import read_slice
from dagmaster.python.graphs import Group, Item, Task, within
from dagmaster.python.node_plans import Numbers, Plan, Planner
from dagmaster.snowflakes import new_id

JOB = 7


def task(name: str = "a", **kwargs) -> Task:
    return Task("work", kwargs, label=name)


def tasks(names: str) -> list[Task]:
    return [task(name) for name in names.split()]


def planned(*items: Item, adder: str | None = "entry", job_id: int = JOB, numbers: Numbers | None = None) -> Plan:
    numbers = numbers or (Numbers() if adder else Numbers(applied=iter(new_id, None)))
    return Planner(items, job_id, adder, numbers, lambda task: task.queue).plan()


def waits(plan: Plan) -> dict[str, set[str]]:
    """The direct dependencies of each task by label, through gates."""
    by_id = {node.node_id: node for node in plan.nodes}
    return {node.label: set(_labels(node, by_id)) for node in plan.nodes if node.type == "task"}


def _labels(node: AddedNode, by_id: dict[str, AddedNode]) -> Iterator[str]:
    for source in awaited(node):
        before = by_id[source]
        if before.type == "task":
            yield before.label
        else:
            yield from _labels(before, by_id)


# Operators.


def test_a_right_arrow_makes_the_right_depend_on_the_left_and_returns_the_right():
    a, b, c = tasks("a b c")
    assert a >> b >> c is c
    assert b.previous == (a,)
    assert c.previous == (b,)


def test_a_left_arrow_makes_the_left_depend_on_the_right_and_returns_the_left():
    a, b = tasks("a b")
    assert a << b is a
    assert a.previous == (b,)


def test_an_arrow_to_a_list_fans_out_and_one_from_a_list_fans_in():
    a, b, c, d = tasks("a b c d")
    both = [b, c]
    assert a >> both is both
    assert both >> d is d
    assert (b.previous, c.previous, d.previous) == ((a,), (a,), (b, c))


def test_a_diamond_can_be_written_in_one_line():
    a, b, c, d = tasks("a b c d")
    assert a >> [b, c] >> d is d
    assert waits(planned(a, b, c, d)) == {"a": set(), "b": {"a"}, "c": {"a"}, "d": {"b", "c"}}


def test_left_arrows_accept_lists_on_either_side():
    a, b, c = tasks("a b c")
    both = [a, b]
    assert both << c is both
    assert (a.previous, b.previous) == ((c,), (c,))
    d = task("d")
    assert d << [a, b] is d
    assert d.previous == (a, b)


def test_depends_on_returns_its_item_and_accepts_one_or_several():
    a, b, c, d = tasks("a b c d")
    assert d.depends_on(a).depends_on([b, c]) is d
    assert d.previous == (a, b, c)


def test_duplicate_dependencies_are_merged():
    a, b = tasks("a b")
    for _ in range(3):
        a >> b
        b << a
        b.depends_on([a, a])
    assert b.previous == (a,)
    assert len(planned(a, b).dependencies) == 1


def test_an_arrow_between_two_lists_is_a_type_error():
    a, b = tasks("a b")
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = [a] >> [b]  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = [a] << [b]  # type: ignore[operator]


@pytest.mark.parametrize("other", ["b", 3, None, {"b": 1}])
def test_only_items_and_lists_of_them_can_be_linked(other):
    with pytest.raises(TypeError, match="unsupported operand"):
        task() >> other
    with pytest.raises(TypeError, match="only tasks and groups can wait for each other"):
        task() >> [other]


def test_groups_can_be_used_like_tasks():
    a, b, c, d = tasks("a b c d")
    before, after = Group("before", [a, b]), Group("after", [c, d])
    assert before >> after is after
    assert waits(planned(before, after)) == {"a": set(), "b": set(), "c": {"a", "b"}, "d": {"a", "b"}}


# Groups.


def test_members_of_an_inner_group_inherit_the_outer_groups_dependencies():
    first, deep, last = tasks("first deep last")
    inner = Group("inner", [deep])
    outer = Group("outer", [inner])
    first >> outer >> last
    assert waits(planned(first, outer, last)) == {"first": set(), "deep": {"first"}, "last": {"deep"}}


def test_an_empty_group_passes_its_dependencies_on():
    a, b = tasks("a b")
    empty = Group("empty")
    a >> empty >> b
    assert waits(planned(a, empty, b)) == {"a": set(), "b": {"a"}}


def test_an_item_belongs_to_one_group_and_never_to_itself():
    a = task()
    inner = Group("one", [a])
    with pytest.raises(Invalid, match=r"task 'a' is already in group 'one'"):
        Group("two", [a])
    outer = Group("outer", [inner])
    with pytest.raises(Invalid, match="cannot be a part of itself"):
        inner.add(outer)


def test_a_member_cannot_be_applied_without_its_group():
    a = task()
    group = Group("g", [a])
    with pytest.raises(Invalid, match="apply the group"):
        planned(a)
    assert len(planned(group, a).nodes) == 1


def test_edges_between_groups_grow_with_their_sum_not_their_product():
    left, right = (Group(name, [task(f"{name}{n}") for n in range(100)]) for name in "lr")
    left >> right
    plan = planned(left, right)
    assert len(plan.nodes) == 201
    assert sum(len(awaited(node)) for node in plan.nodes) == 200
    assert [node.group for node in plan.nodes if node.type == "gate"] == [plan.group_ids[right]]


def test_a_gate_is_not_used_between_one_and_many():
    a, z = tasks("a z")
    group = Group("g", tasks("b c d"))
    a >> group >> z
    assert {node.type for node in planned(a, group, z).nodes} == {"task"}


# Cycles and foreign items.


def test_a_cycle_is_reported_with_its_path():
    a, b, c = tasks("a b c")
    a >> b >> c >> a
    with pytest.raises(
        Invalid, match=r"they wait for each other: (a >> b >> c >> a|b >> c >> a >> b|c >> a >> b >> c)"
    ):
        planned(a, b, c)


def test_a_cycle_through_groups_is_detected():
    a, b = tasks("a b")
    left, right = Group("left", [a]), Group("right", [b])
    left >> right
    b >> a
    with pytest.raises(Invalid, match="they wait for each other: ") as caught:
        planned(left, right)
    assert {"a", "b", "left", "right"} == set(str(caught.value).partition(": ")[2].split(" >> "))


def test_a_task_that_depends_on_its_own_group_is_a_cycle():
    a = task()
    group = Group("g", [a])
    group >> a
    with pytest.raises(Invalid, match="they wait for each other"):
        planned(group)


def test_an_item_that_depends_on_itself_is_a_cycle():
    for item in (task(), Group("a")):
        item >> item
        with pytest.raises(Invalid, match="a >> a"):
            planned(item)


def test_depending_on_an_unapplied_item_is_an_error():
    a, b = tasks("a b")
    a >> b
    with pytest.raises(Invalid, match=r"task 'b' waits for task 'a', which is not applied"):
        planned(b)


def test_depending_on_an_applied_item_adds_an_edge():
    a, b = tasks("a b")
    planned(a).settle()
    a >> b
    assert planned(b, adder="other").nodes[0].after == ("entry.1",)


def test_an_applied_group_can_have_many_dependents():
    group = Group("g", tasks("a b c"))
    first = planned(group)
    first.settle()
    later = tasks("x y z")
    group >> later
    plan = planned(*later)
    assert [node.type for node in plan.nodes].count("gate") == 1
    assert [len(node.after) for node in plan.nodes] == [3, 1, 1, 1]


def test_items_of_another_job_cannot_be_dependencies():
    a, b = tasks("a b")
    planned(a).settle()
    a >> b
    with pytest.raises(Invalid, match="in another job: 7"):
        planned(b, job_id=8)


def test_applied_items_cannot_be_changed_or_applied_again():
    a, b = tasks("a b")
    group = Group("g", [a])
    planned(group).settle()
    with pytest.raises(Conflict, match="dependencies cannot change"):
        b >> a
    with pytest.raises(Conflict, match="nothing can be added"):
        group.add(b)
    with pytest.raises(Conflict, match="is already applied to job 7"):
        planned(group)
    planned(b).settle()
    with pytest.raises(Conflict, match="cannot join a group"):
        Group("h", [b])


# Results, names and ids.


def test_a_task_as_an_argument_is_a_dependency_and_its_result():
    a = task("a")
    b = task("b", x=a, many=[1, {"deep": (a,)}])
    plan = planned(a, b)
    assert plan.nodes[1].params == {"x": {"$result": "entry.1"}, "many": [1, {"deep": [{"$result": "entry.1"}]}]}
    assert awaited(plan.nodes[1]) == ("entry.1",)
    assert [(dependency.previous_id, dependency.next_id) for dependency in plan.dependencies] == [
        ("entry.1", "entry.2")
    ]


def test_an_unapplied_result_is_an_error():
    with pytest.raises(Invalid, match="apply both"):
        planned(task("b", x=task("a")))


def test_a_group_without_a_result_cannot_be_an_argument():
    with pytest.raises(Invalid, match="has no result"):
        task("b", x=Group("g"))


def test_data_cannot_forge_a_result_reference():
    with pytest.raises(Invalid, match="which is reserved for results"):
        planned(task("a", x={"$result": "secret_node"}))


def test_ids_are_numbered_and_names_are_kept():
    named = Task("work", name="load")
    plan = planned(task(), named, task())
    assert [node.node_id for node in plan.nodes] == ["entry.1", "entry.load", "entry.2"]


@pytest.mark.parametrize("name", ["1", "a.b", "", "x" * 49, "ä"])
def test_a_name_must_give_a_valid_id(name):
    with pytest.raises(Invalid, match="invalid task name"):
        planned(Task("work", name=name))


def test_duplicate_names_are_refused():
    with pytest.raises(Invalid, match="two tasks are named 'load'"):
        planned(Task("work", name="load"), Task("work", name="load"))


def test_an_attempt_can_use_a_name_once():
    numbers = Numbers()
    planned(Task("work", name="x"), numbers=numbers)
    with pytest.raises(Invalid, match="two tasks are named 'x'"):
        planned(Task("work", name="x"), numbers=numbers)


def test_from_outside_ids_are_those_of_the_items():
    a, b = task(), task()
    group = Group("g", [b])
    a >> group
    plan = planned(a, group, adder=None)
    assert plan.nodes[0].node_id == f"added.{a.id}"
    assert [group.group_id for group in plan.groups] == [group.id]
    assert [(dependency.previous_id, dependency.next_id) for dependency in plan.dependencies] == [(a.id, group.id)]


def nested() -> list[Item]:
    a, b, c, d = tasks("a b c d")
    outer = Group("outer", [Group("inner", [a, b]), Group("empty"), c])
    outer >> d
    first = tasks("e f")
    return [outer, d, *first, first >> Group("last", tasks("g h"))]


def test_a_repeated_attempt_plans_the_same_apart_from_task_ids():
    first, again = (planned(*nested()) for _ in range(2))
    assert (first.groups, first.dependencies) == (again.groups, again.dependencies)
    assert [replace(node, task=None) for node in first.nodes] == [replace(node, task=None) for node in again.nodes]


def test_groups_have_their_own_ids_in_each_job_and_attempt():
    plans = [
        planned(*nested()),
        planned(*nested(), job_id=JOB + (1 << 22)),
        planned(*nested(), adder="other"),
        planned(*nested(), numbers=Numbers(nodes=count(9), groups=count(5), applied=count(2))),
    ]
    ids = {group.group_id for plan in plans for group in plan.groups}
    assert len(ids) == 4 * 4


def test_a_stored_group_is_identified_by_its_position_in_the_job():
    group = Group("g", [task()])
    plan = planned(group)
    plan.settle()
    assert (group.id, group.job_id) == (plan.groups[0].group_id, JOB)


def test_a_plan_of_25_000_tasks_is_split_into_slices():
    items = [task(str(n), n=n) for n in range(25_000)]
    slices = [read_slice(part) for part in planned(*items).encode()]
    assert [len(part.nodes) for part in slices] == [1000] * 25


# Random graphs.


@st.composite
def graphs(draw: st.DrawFn) -> list[Item]:
    """Tasks in nested groups, some of them empty, and acyclic edges of all four kinds."""
    groups = [Group(f"g{n}") for n in range(draw(st.integers(0, 5)))]
    for n, group in enumerate(groups):
        if n and draw(st.booleans()):
            groups[draw(st.integers(0, n - 1))].add(group)
    leaves = [task(f"t{n}") for n in range(draw(st.integers(1, 8)))]
    for leaf in leaves:
        if bool(groups) and draw(st.booleans()):
            draw(st.sampled_from(groups)).add(leaf)
    everything: list[Item] = [*groups, *leaves]
    for _ in range(draw(st.integers(0, 12))):
        before, after = draw(st.sampled_from(everything)), draw(st.sampled_from(everything))
        if not would_be_a_circle(everything, before, after):
            before >> after
    return everything


def held_by(item: Item) -> set[str]:
    """The labels of its tasks; an empty group counts as a task that does nothing."""
    return {
        member.label
        for member in within([item])
        if isinstance(member, Task) or (isinstance(member, Group) and not member.items)
    }


def must_wait(everything: list[Item], *more: tuple[Item, Item]) -> dict[str, set[str]]:
    """The rules of `>>` and groups by brute force: each successor waits for each predecessor, recursively."""
    edges = [(previous, item) for item in everything for previous in item.previous]
    before: dict[str, set[str]] = {label: set() for item in everything for label in held_by(item)}
    for previous, item in [*edges, *more]:
        for label in held_by(item):
            before[label] |= held_by(previous)
    changed = True
    while changed:
        grown = {label: known.union(*(before[source] for source in known)) for label, known in before.items()}
        changed, before = grown != before, grown
    return before


def would_be_a_circle(everything: list[Item], previous: Item, item: Item) -> bool:
    before = must_wait(everything, (previous, item))
    return any(label in known for label, known in before.items())


def outermost(everything: list[Item]) -> list[Item]:
    return [item for item in everything if item.group is None]


@given(graphs())
def test_each_task_waits_for_exactly_its_dependencies(everything: list[Item]):
    plan = planned(*outermost(everything))
    direct = waits(plan)
    reached = {label: set(known) for label, known in direct.items()}
    for node in plan.nodes:  # Each after its dependencies.
        if node.type == "task":
            reached[node.label] |= {source for label in direct[node.label] for source in reached[label]}
    leaves = {item.label for item in everything if isinstance(item, Task)}
    assert reached == {label: known & leaves for label, known in must_wait(everything).items() if label in leaves}


@given(graphs(), st.randoms(use_true_random=False))
def test_the_engine_runs_tasks_in_dependency_order(everything: list[Item], rng: Random):
    bench = Bench(entry=an_entry(), end=end("entry")).start()
    bench.begin("entry")
    plan = planned(*outermost(everything))
    for part in map(read_slice, plan.encode()):
        message = TasksAdded("entry", bench.task_id("entry"), "worker", bench.now, part.nodes, part.groups)
        bench.send(message)
    bench.complete("entry", {"result": None})
    labels = {node.node_id: node.label for node in plan.nodes if node.type == "task"}
    before = must_wait(everything)
    done: set[str] = set()
    while bench.waiting:
        ready = [task_id.removeprefix(f"{BENCH_JOB}_").rpartition("_")[0] for task_id in bench.waiting]
        for node_id in ready:
            assert before[labels[node_id]] & set(labels.values()) <= done
        chosen = rng.choice(ready)
        bench.begin(chosen)
        bench.complete(chosen, {"result": None})
        done.add(labels[chosen])
    assert done == set(labels.values())
    assert bench.status == "completed"


@given(graphs(), st.data())
def test_any_cycle_is_refused(everything: list[Item], data: st.DataObject):
    previous, item = data.draw(st.sampled_from(everything)), data.draw(st.sampled_from(everything))
    is_circle = would_be_a_circle(everything, previous, item)
    previous >> item
    if is_circle:
        with pytest.raises(Invalid, match="they wait for each other"):
            planned(*outermost(everything))
    else:
        planned(*outermost(everything))


def test_create_task_wraps_a_function() -> None:
    with pytest.raises(TypeError, match=r"create_task\(<built-in function len>\)"):
        Task(len)  # type: ignore[arg-type]


def test_a_group_may_be_given_one_item() -> None:
    alone = Task("f")
    assert list(Group("g", alone).tasks()) == [alone]  # type: ignore[arg-type]
