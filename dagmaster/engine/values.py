"""Values too large for memory: the engine knows their size and location only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The inputs of the job, in a mapping of node ids.
INPUTS = ""


@dataclass(frozen=True, slots=True)
class StoredValue:
    """JSON that only the database holds: in a mail, in another node's row, or in its own row."""

    size: int
    mail_id: int | None = None
    node_id: str | None = None

    def located(self, node_id: str) -> "StoredValue":
        """With its location, which is left out in the node's own row."""
        return self if self.mail_id or self.node_id else StoredValue(self.size, node_id=node_id)


Value = bytes | StoredValue


@dataclass(frozen=True, slots=True)
class LoadedValues:
    """The values loaded for one change set, by node."""

    outputs: Mapping[str, bytes] = field(default_factory=dict)
    inputs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job's result: the small values as JSON, the large ones by location."""

    data: bytes
    parts: Mapping[str, StoredValue] = field(default_factory=dict)


def size_of(value: Value | None) -> int:
    if value is None:
        return 0
    return value.size if isinstance(value, StoredValue) else len(value)


def spell_size(size: int) -> str:
    return f"{size / 1024**2:.1f} MiB" if size >= 1024**2 else f"{size / 1024:.1f} KiB"
