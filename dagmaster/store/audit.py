"""Write to the audit log: system events without a job."""

import re
from collections.abc import Mapping
from typing import Any

from dagmaster.store.connect import Connection, encode_json, storable
from dagmaster.store.statements import run

# The escape of NUL, which jsonb rejects: an odd number of backslashes.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


async def note_command(
    conn: Connection,
    data: Mapping[str, Any],
    *,
    error: str | None = None,
    duration_ms: int | None = None,
    source_app: str = "api",
) -> None:
    """Record a manual change of the system."""
    values = {
        "event_status": "info" if error is None else "failure",
        "data": _NUL.sub(r"\1\\ufffd", encode_json(data)),
        "error": storable(error) if error is not None else None,
        "duration_ms": duration_ms,
        "source_app": source_app,
    }
    await run(conn, "note_command", values)


async def note_orchestrator(
    conn: Connection, event_type: str, data: Mapping[str, Any], *, status: str = "warning"
) -> None:
    values = {"event_type": event_type, "event_status": status, "data": encode_json(data)}
    await run(conn, "note_orchestrator", values)
