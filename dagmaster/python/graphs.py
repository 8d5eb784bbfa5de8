"""Tasks and groups with their dependencies, in memory: nothing is stored before `apply`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar, Self, TypeVar

from dagmaster.errors import Conflict, Invalid
from dagmaster.model.added_nodes import EndKind
from dagmaster.model.retry import RetryPolicy
from dagmaster.snowflakes import new_id

Other = TypeVar("Other", bound="Item | Sequence[Item]")
Several = TypeVar("Several", bound="Sequence[Item]")

PATH_SHOWN = 12


class Item(ABC):
    """A node of the graph. `a >> b` or `b << a` makes b wait for a."""

    kind: ClassVar[EndKind]

    def __init__(self, label: str) -> None:
        self.id = new_id()
        self.label = label
        self.job_id: int | None = None
        self.group: Group | None = None
        self._previous: dict[Item, None] = {}  # in order of declaration

    @property
    def previous(self) -> tuple["Item", ...]:
        """The items that it waits for."""
        return tuple(self._previous)

    @property
    def group_id(self) -> int | None:
        return self.group.id if self.group is not None else None

    @property
    def is_applied(self) -> bool:
        return self.job_id is not None

    @property
    @abstractmethod
    def result(self) -> "Task":
        """The task whose result is the result of the item."""

    def depends_on(self, other: "Item | Sequence[Item]") -> Self:
        """Wait for another item, or for several."""
        others = _items(other)
        if self.is_applied:
            raise Conflict(f"{self} is already applied: its dependencies cannot change any more")
        self._previous |= dict.fromkeys(others)
        return self

    def __rshift__(self, other: Other) -> Other:
        if not _is_linkable(other):
            return NotImplemented
        for item in _items(other):
            item.depends_on(self)
        return other

    def __rrshift__(self, other: "Sequence[Item]") -> Self:
        return self.depends_on(other) if _is_linkable(other) else NotImplemented

    def __lshift__(self, other: "Item | Sequence[Item]") -> Self:
        return self.depends_on(other) if _is_linkable(other) else NotImplemented

    def __rlshift__(self, other: Several) -> Several:
        return self.__rshift__(other)

    def __str__(self) -> str:
        return f"{self.kind} {self.label!r}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label} {self.id}>"


class Task(Item):
    """A function call that a worker makes.

    As an argument of another task, it is replaced by its result. `name` becomes its id in the job; without it the id
    is a number. `entrypoint` is an alias of `handler`.
    """

    kind = "task"

    def __init__(
        self,
        handler: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        entrypoint: str | None = None,
        name: str | None = None,
        label: str | None = None,
        queue: str | None = None,
        timeout_seconds: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        if handler is not None and entrypoint is not None:
            raise TypeError("a Task has one handler: pass it as the first argument or as entrypoint, not as both")
        handler = entrypoint if handler is None else handler
        if not isinstance(handler, str):
            raise TypeError(f"a Task needs the name of a handler; use create_task({handler!r})")
        super().__init__(label or name or _short(handler))
        self.handler = handler
        self.kwargs = dict(kwargs or {})
        self.name = name
        self.queue = queue
        self.timeout_seconds = timeout_seconds
        self.retry = retry
        self.node_id: str | None = None
        self._previous |= dict.fromkeys(item.result for item in handles_in(self.kwargs))

    @property
    def entrypoint(self) -> str:
        return self.handler

    @property
    def result(self) -> "Task":
        return self


class Group(Item):
    """Tasks and groups with common dependencies: an item that waits for the group waits for all of them, and all wait
    for the dependencies of the group.

    `result` is the task whose result is the value of the group.
    """

    kind = "group"

    def __init__(self, name: str, items: "Sequence[Item]" = (), *, result: Task | None = None) -> None:
        super().__init__(name)
        self.items: list[Item] = []
        self.ends: tuple[str, ...] = ()  # its last nodes, set by `apply`
        self._result = result
        self.add(*_items(items))

    @property
    def name(self) -> str:
        return self.label

    @property
    def parent_group_id(self) -> int | None:
        return self.group_id

    @property
    def result(self) -> Task:
        if self._result is None:
            raise Invalid(f"{self} has no result; only groups of `map` and `reduce` have one")
        return self._result

    def add(self, *items: Item) -> Self:
        if self.is_applied:
            raise Conflict(f"{self} is already applied: nothing can be added to it any more")
        around = set(self._around())
        for item in _items(items):
            if item in around:
                raise Invalid(f"{item} cannot be a part of itself, in {self}")
            if item.group not in (None, self):
                raise Invalid(f"{item} is already in {item.group}; an item can be in one group")
            if item.is_applied:
                raise Conflict(f"{item} is already applied and cannot join a group any more")
            if item.group is None:
                item.group = self
                self.items.append(item)
        return self

    def tasks(self) -> Iterator[Task]:
        """All tasks, including those of nested groups."""
        for item in within([self]):
            if isinstance(item, Task):
                yield item

    def _around(self) -> Iterator["Group"]:
        group: Group | None = self
        while group is not None:
            yield group
            group = group.group


def within(items: Sequence[Item]) -> Iterator[Item]:
    """The items and their members, each once, outer before inner."""
    seen: set[Item] = set()
    ahead = list(reversed(items))
    while ahead:
        item = ahead.pop()
        if item in seen:
            continue
        seen.add(item)
        yield item
        if isinstance(item, Group):
            ahead.extend(reversed(item.items))


def handles_in(value: Any) -> Iterator[Item]:
    """The tasks and groups in a value, which their results will replace."""
    ahead = [value]
    while ahead:
        part = ahead.pop()
        if isinstance(part, Item):
            yield part
        elif isinstance(part, dict):
            ahead.extend(part.values())
        elif isinstance(part, list | tuple):
            ahead.extend(part)


class Point:
    """A task, or the start or end of a group. `waits` are the nodes that a successor waits for."""

    __slots__ = ("after", "followers", "item", "waits")

    def __init__(self, item: Item, waits: tuple[str, ...] = ()) -> None:
        self.item, self.waits = item, waits
        # Lists are created on demand: there may be many points.
        self.after: list[Point] | tuple[()] = ()
        self.followers: list[Point] | tuple[()] = ()


def join(before: Point, after: Point) -> None:
    if isinstance(after.after, list):
        after.after.append(before)
    else:
        after.after = [before]
    if isinstance(before.followers, list):
        before.followers.append(after)
    else:
        before.followers = [after]


def in_order(points: Sequence[Point]) -> Sequence[Point]:
    """The points in topological order. Raises Invalid with the path of a cycle."""
    left = {point: len(point.after) for point in points if point.after}
    ordered = [point for point in points if not point.after]
    for point in ordered:  # It grows during the iteration.
        for follower in point.followers:
            left[follower] -= 1
            if left[follower] == 0:
                ordered.append(follower)
    if len(ordered) < len(points):
        raise Invalid(f"they wait for each other: {_circle(points)}")
    return ordered


def _circle(points: Sequence[Point]) -> str:
    try:
        TopologicalSorter({point: point.after for point in points}).prepare()
    except CycleError as error:
        names = list(_without_repeats([point.item for point in error.args[1]]))
    if len(names) > PATH_SHOWN:
        names = [*names[: PATH_SHOWN // 2], "...", *names[-PATH_SHOWN // 2 :]]
    return " >> ".join(names)


def _without_repeats(items: Sequence[Item]) -> Iterator[str]:
    """Show the start and the end of a group as one."""
    for place, item in enumerate(items):
        if place in (0, len(items) - 1) or item is not items[place - 1]:
            yield item.label


def _is_linkable(value: object) -> bool:
    return isinstance(value, Item | list | tuple)


def _items(value: "Item | Sequence[Item]") -> list[Item]:
    items = [value] if isinstance(value, Item) else list(value)
    for item in items:
        if not isinstance(item, Item):
            raise TypeError(f"only tasks and groups can wait for each other, not a {type(item).__name__}: {item!r:.80}")
    return items


def _short(handler: str) -> str:
    return handler.rpartition(":")[2].rpartition(".")[2] or handler
