"""Tasks and groups with what they wait for, in memory: nothing is stored before `apply`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from dagmaster.errors import Conflict, Invalid
from dagmaster.model.added import EndKind
from dagmaster.model.retry import RetryPolicy
from dagmaster.snowflakes import new_id

Other = TypeVar("Other", bound="Item | Sequence[Item]")
Several = TypeVar("Several", bound="Sequence[Item]")


class Item(ABC):
    """What can wait and be waited for. `a >> b` lets b wait for a, and `b << a` says the same."""

    kind: ClassVar[EndKind]

    def __init__(self, label: str) -> None:
        self.id = new_id()
        self.label = label
        self.job_id: int | None = None
        self.group: Group | None = None
        self._previous: dict[Item, None] = {}  # in the order in which it was said

    @property
    def previous(self) -> tuple["Item", ...]:
        """What it waits for, each once."""
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
        """The task whose result stands for it."""

    def depends_on(self, other: "Item | Sequence[Item]") -> Self:
        """Let it wait for the other, or for all of them."""
        others = _items(other)
        if self.is_applied:
            raise Conflict(f"{self} was applied already: what it waits for cannot be changed any more")
        self._previous |= dict.fromkeys(others)
        return self

    def __rshift__(self, other: Other) -> Other:
        if not _is_linkable(other):
            return NotImplemented
        for one in _items(other):
            one.depends_on(self)
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
    """A call of a function that a worker will make.

    As a value among the arguments of another task it stands for its result. `name` makes its id in the job one that
    can be told; without it the id is a number. `entrypoint` is another word for `handler`.
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
            raise TypeError("a Task has one handler: give it as the first argument or as entrypoint, not as both")
        handler = entrypoint if handler is None else handler
        if not isinstance(handler, str):
            raise TypeError(f"a Task has the name of a handler; create_task() makes one of {handler!r}")
        super().__init__(label or name or _short(handler))
        self.handler = handler
        self.kwargs = dict(kwargs or {})
        self.name = name
        self.queue = queue
        self.timeout_seconds = timeout_seconds
        self.retry = retry
        self.node_id: str | None = None
        self._previous |= dict.fromkeys(one.result for one in handles_in(self.kwargs))

    @property
    def entrypoint(self) -> str:
        return self.handler

    @property
    def result(self) -> "Task":
        return self


class Group(Item):
    """Tasks and groups that belong together: what waits for the group waits for all of them, and all wait for what
    the group waits for.

    `result` is one of the tasks: the group stands for the result of it where a value is needed.
    """

    kind = "group"

    def __init__(self, name: str, items: "Sequence[Item]" = (), *, result: Task | None = None) -> None:
        super().__init__(name)
        self.items: list[Item] = []
        self.ends: tuple[str, ...] = ()  # when it is applied: the nodes that are its last
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
            raise Invalid(f"{self} has no result; `map` and `reduce` have one, and each of its tasks")
        return self._result

    def add(self, *items: Item) -> Self:
        if self.is_applied:
            raise Conflict(f"{self} was applied already: nothing can be added to it any more")
        around = set(self._around())
        for item in _items(items):
            if item in around:
                raise Invalid(f"{item} cannot be a part of itself, in {self}")
            if item.group not in (None, self):
                raise Invalid(f"{item} is in {item.group} already; it can be in one group")
            if item.is_applied:
                raise Conflict(f"{item} was applied already and can join no group any more")
            if item.group is None:
                item.group = self
                self.items.append(item)
        return self

    def tasks(self) -> Iterator[Task]:
        """Those of the groups in it too."""
        for item in within([self]):
            if isinstance(item, Task):
                yield item

    def _around(self) -> Iterator["Group"]:
        group: Group | None = self
        while group is not None:
            yield group
            group = group.group


def within(items: Sequence[Item]) -> Iterator[Item]:
    """The items and all that is in them, each once, the outer before the inner and in order."""
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
    """The tasks and groups that stand for their results somewhere in a value."""
    ahead = [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, Item):
            yield one
        elif isinstance(one, dict):
            ahead.extend(one.values())
        elif isinstance(one, list | tuple):
            ahead.extend(one)


def _is_linkable(value: object) -> bool:
    return isinstance(value, Item | list | tuple)


def _items(value: "Item | Sequence[Item]") -> list[Item]:
    items = [value] if isinstance(value, Item) else list(value)
    for one in items:
        if not isinstance(one, Item):
            raise TypeError(f"only tasks and groups wait for each other, not a {type(one).__name__}: {one!r:.80}")
    return items


def _short(handler: str) -> str:
    return handler.rpartition(":")[2].rpartition(".")[2] or handler
