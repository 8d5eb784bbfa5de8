"""The points of a graph that edges connect, in topological order."""

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from dagmaster.errors import Invalid
from dagmaster.python.graphs import Item

PATH_SHOWN = 12


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
    """Topological order. Raises Invalid with the path of a cycle."""
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
