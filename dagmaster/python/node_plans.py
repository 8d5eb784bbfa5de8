"""Plans of the nodes that an owner adds to its job, from tasks and groups, with the ids that their attempt assigns."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import orjson

from dagmaster.errors import Conflict, Invalid
from dagmaster.model.added_nodes import RESULT, AddedDependency, AddedGroup, AddedNode, added_id, references, result_of
from dagmaster.model.dynamic_nodes import encode_slices
from dagmaster.python.graphs import Group, Item, Point, Task, in_order, join, within
from dagmaster.python.values import encode
from dagmaster.snowflakes import repeatable_id

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,47}")
# Values that are not JSON are left to `encode`.
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_NAMES_RESULT = f'"{RESULT}"'.encode()


@dataclass(slots=True, eq=False)
class Numbers:
    """The counters of an attempt. A repeated attempt counts from the start, and so assigns the same ids."""

    nodes: Iterator[int] = field(default_factory=partial(count, 1))
    groups: Iterator[int] = field(default_factory=partial(count, 1))
    applied: Iterator[int] = field(default_factory=partial(count, 1))
    names: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Plan:
    """The rows to store, and the ids of the items."""

    job_id: int
    nodes: list[AddedNode] = field(default_factory=list)
    groups: list[AddedGroup] = field(default_factory=list)
    dependencies: list[AddedDependency] = field(default_factory=list)
    node_ids: dict[Task, str] = field(default_factory=dict)
    group_ids: dict[Group, int] = field(default_factory=dict)
    ends: dict[Group, tuple[str, ...]] = field(default_factory=dict)

    def encode(self) -> list[bytes]:
        return encode_slices(self.nodes, self.groups, self.dependencies)

    def settle(self) -> None:
        """After storing: give the items their ids in the job."""
        for task, node_id in self.node_ids.items():
            task.node_id, task.job_id = node_id, self.job_id
        for group, ends in self.ends.items():
            group.id, group.ends, group.job_id = self.group_ids[group], ends, self.job_id


class Planner:
    """Edges between groups cost the sum of their sizes, not the product: a gate node joins them.

    Ids are assigned on creation, in the order of the calls; `plan` is slow and may run in a thread.
    """

    def __init__(
        self,
        items: Sequence[Item],
        job_id: int,
        adder: str | None,
        numbers: Numbers,
        queue_of: Callable[[Task], str | None],
    ) -> None:
        """Raises Invalid for names that cannot be ids."""
        self._items = list(within(items))
        self._plan = Plan(job_id)
        self._adder, self._queue_of = adder, queue_of
        self._number, self._gates = next(numbers.applied), 0
        self._starts: dict[Item, Point] = {}
        self._ends: dict[Item, Point] = {}
        self._check()
        for item in self._items:
            self._name(item, numbers)

    def __len__(self) -> int:
        return len(self._items)

    def plan(self) -> Plan:
        """Raises Invalid for cycles and for items that wait for one that is not applied."""
        for item in self._items:
            self._starts[item] = self._ends[item] = Point(item)
            if isinstance(item, Group):
                self._ends[item] = Point(item)
        for item in self._items:
            self._link(item)
        for point in in_order(list(dict.fromkeys([*self._starts.values(), *self._ends.values()]))):
            self._emit(point)
        self._plan.ends = {group: self._ends[group].waits for group in self._plan.group_ids}
        self._plan.groups = [
            AddedGroup(group_id, group.name[:128], self._group_of(group))
            for group, group_id in self._plan.group_ids.items()
        ]
        self._plan.dependencies = [
            AddedDependency(self._id_of(previous), previous.kind, self._id_of(item), item.kind)
            for item in self._items
            for previous in item.previous
        ]
        return self._plan

    def _check(self) -> None:
        known = set(self._items)
        for item in self._items:
            if item.is_applied:
                raise Conflict(f"{item} is already applied to job {item.job_id}")
            if item.group is not None and item.group not in known:
                raise Invalid(f"{item} is in {item.group}, which is not applied with it; apply the group")

    def _name(self, item: Item, numbers: Numbers) -> None:
        """The id of an item. A repeated attempt assigns the same ids; items added from outside get new ones."""
        if isinstance(item, Group):
            key = f"{self._adder} {next(numbers.groups)}"
            self._plan.group_ids[item] = repeatable_id(self._plan.job_id, key) if self._adder else item.id
        elif isinstance(item, Task):
            self._plan.node_ids[item] = self._node_id(item, numbers)

    def _node_id(self, task: Task, numbers: Numbers) -> str:
        if task.name is None:
            return added_id(self._adder, next(numbers.nodes) if self._adder else task.id)
        if self._adder is None:
            raise Invalid(f"{task} has a name; only tasks that a running task adds can have one")
        if _NAME.fullmatch(task.name) is None:
            raise Invalid(
                f"invalid task name {task.name!r}: use a letter, then letters, digits, _ and -, at most 48 characters"
            )
        if task.name in numbers.names:
            raise Invalid(f"two tasks are named {task.name!r}; names must be unique")
        numbers.names.add(task.name)
        return added_id(self._adder, task.name)

    def _link(self, item: Item) -> None:
        start, end = self._starts[item], self._ends[item]
        if item.group is not None:
            join(self._starts[item.group], start)
        for previous in item.previous:
            join(self._end_of(previous, item), start)
        if isinstance(item, Group):
            for inner in item.items:
                join(self._ends[inner], end)
            if not item.items:
                join(start, end)

    def _end_of(self, previous: Item, item: Item) -> Point:
        if previous not in self._ends:
            if not previous.is_applied:
                raise Invalid(f"{item} waits for {previous}, which is not applied; apply both")
            if previous.job_id != self._plan.job_id:
                raise Invalid(f"{item} waits for {previous}, which is in another job: {previous.job_id}")
            self._ends[previous] = Point(previous, waits=_nodes_of(previous))
        return self._ends[previous]

    def _emit(self, point: Point) -> None:
        item = point.item
        waits = dict.fromkeys(point.waits)
        for before in point.after:
            waits.update(dict.fromkeys(before.waits))
        if isinstance(item, Task) and not item.is_applied:
            node = self._node(item, waits)
            self._plan.nodes.append(node)
            point.waits = (node.node_id,)
        elif len(waits) > 1 and len(point.followers) > 1:
            node = self._gate(item, waits)
            self._plan.nodes.append(node)
            point.waits = (node.node_id,)
        else:
            point.waits = tuple(waits)

    def _gate(self, item: Item, waits: Mapping[str, None]) -> AddedNode:
        self._gates += 1
        group = self._plan.group_ids.get(item) if isinstance(item, Group) else None
        node_id = added_id(self._adder, f"{self._number}-{self._gates}")
        return AddedNode(node_id, after=tuple(waits), type="gate", group=group, label=item.label[:128])

    def _node(self, task: Task, waits: Mapping[str, None]) -> AddedNode:
        params: Mapping[str, Any] = task.kwargs
        after, plain = tuple(waits), _is_plain(params)
        if not plain:
            params = encode(params, lambda value: self._replacement(value, task))
            named = set(references(params))
            after = tuple(source for source in waits if source not in named)
        return AddedNode(
            self._plan.node_ids[task],
            task.handler,
            params,
            after,
            queue=self._queue_of(task),
            timeout_seconds=task.timeout_seconds,
            retry=task.retry,
            task=task.id,
            group=self._group_of(task),
            label=task.label[:128],
            names_no_results=plain,
        )

    def _replacement(self, value: Any, task: Task) -> Any:
        """The replacement for a part of the arguments; None leaves it as it is."""
        match value:
            case Item():
                return result_of(self._source(value.result, task))
            case {"$result": _} if len(value) == 1:
                raise Invalid(
                    f"an argument of {task} is an object with the single key {RESULT}, which is reserved for results"
                )
            case _:
                return None

    def _source(self, other: Task, task: Task) -> str:
        node_id = other.node_id or self._plan.node_ids.get(other)
        if node_id is None:
            raise Invalid(f"{task} uses the result of {other}, which is not applied; apply both")
        return node_id

    def _group_of(self, item: Item) -> int | None:
        return self._plan.group_ids[item.group] if item.group is not None else None

    def _id_of(self, item: Item) -> int | str:
        """A task by its node id: a repeated attempt creates another task object for the same node."""
        if isinstance(item, Group):
            return self._plan.group_ids.get(item, item.id)
        assert isinstance(item, Task)
        return item.id if self._adder is None else self._plan.node_ids.get(item) or item.node_id or item.id


def _is_plain(params: Mapping[str, Any]) -> bool:
    """Whether the value is plain JSON. Much faster than checking each part."""
    try:
        return _NAMES_RESULT not in orjson.dumps(params, option=_STRICT)
    except TypeError:
        return False


def _nodes_of(item: Item) -> tuple[str, ...]:
    if isinstance(item, Group):
        return item.ends
    assert isinstance(item, Task)
    assert item.node_id is not None
    return (item.node_id,)
