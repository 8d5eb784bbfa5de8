"""Values that are too large for memory: the engine knows their size and where they are, not what they hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Among the names of nodes: the inputs of the job.
INPUTS = ""


@dataclass(frozen=True, slots=True)
class StoredValue:
    """JSON that only the database holds: in a mail, in the row of another node, or else in the row it belongs to."""

    size: int
    mail_id: int | None = None
    node_id: str | None = None


Value = bytes | StoredValue


@dataclass(frozen=True, slots=True)
class LoadedValues:
    """The values that were read for one change set, by node."""

    outputs: Mapping[str, bytes] = field(default_factory=dict)
    inputs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job gives: the small values as JSON, the large ones by where they are."""

    data: bytes
    parts: Mapping[str, StoredValue] = field(default_factory=dict)


def size_of(value: Value | None) -> int:
    if value is None:
        return 0
    return value.size if isinstance(value, StoredValue) else len(value)


def spell_size(size: int) -> str:
    return f"{size / 1024**2:.1f} MiB" if size >= 1024**2 else f"{size / 1024:.1f} KiB"
