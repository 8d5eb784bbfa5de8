"""Text that people search for, as patterns of LIKE."""

from typing import Any

Row = dict[str, Any]


def literal(text: str) -> str:
    """What people type is meant as it stands."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
