"""Plans of applied items to store, and the ids that their attempt assigns."""

from dataclasses import dataclass, field

from dagmaster.model.added_nodes import AddedDependency, AddedGroup, AddedNode
from dagmaster.model.dynamic_nodes import encode_slices
from dagmaster.python.graphs import Group, Task
from dagmaster.snowflakes import new_id


@dataclass(slots=True, eq=False)
class Numbers:
    """The counters of an attempt. A repeated attempt counts from the start, and so assigns the same ids."""

    nodes: int = 0
    groups: int = 0
    applied: int = 0
    names: set[str] = field(default_factory=set)

    def next_node(self) -> int:
        self.nodes += 1
        return self.nodes

    def next_group(self) -> int:
        self.groups += 1
        return self.groups

    def next_apply(self) -> int:
        self.applied += 1
        return self.applied


class NoNumbers(Numbers):
    """Ids for items added from outside, which are never repeated: each is new."""

    def next_apply(self) -> int:
        return new_id()


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
