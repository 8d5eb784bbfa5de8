"""Read the long-running nodes that no worker executes: wait, approval, workflow."""

from typing import Any

from dagmaster.authoring.fields import Fields, Notes, is_missing
from dagmaster.authoring.positions import Located, Mark
from dagmaster.model.durations import read_duration
from dagmaster.model.problems import Path

NEVER = 0.0  # Placeholder for an unreadable duration, so that the mistake is reported once.
UNREAD_WORKFLOW = "(unread)"
WAITS_FOR = ("until", "seconds", "duration", "signal")


def read_wait(node_id: str, mark: Mark, fields: Fields, notes: Notes) -> dict[str, Any]:
    """`duration: 1h30m` is `seconds: 5400`."""
    keys = [key for key in WAITS_FOR if key in fields and not is_missing(fields[key])]
    if len(keys) != 1:
        also = f", not {' and '.join(map(repr, keys))}" if keys else ""
        message = f"the wait {node_id!r} needs exactly one of 'until', 'seconds', 'duration' and 'signal'{also}"
        notes.report(message, fields[keys[1]].mark if keys else mark)
        return {"seconds": NEVER}
    [key] = keys
    located, path = fields[key], ("nodes", node_id)
    if key != "signal" and "timeout_seconds" in fields:
        notes.report(f"'timeout_seconds' has no effect on the wait {node_id!r}: it is only for a signal", mark)
    match key:
        case "duration":
            return {"seconds": _read_duration(node_id, located, notes)}
        case "seconds":
            return notes.read_plain(fields, key, path)
        case "signal":
            return {**_read_text(path, key, located, notes), **notes.read_plain(fields, "timeout_seconds", path)}
        case _:
            return _read_text(path, key, located, notes) or {"seconds": NEVER}


def read_approval(node_id: str, mark: Mark, fields: Fields, notes: Notes) -> dict[str, Any]:
    path = ("nodes", node_id)
    if is_missing(fields.get("message")):
        notes.report(f"the approval {node_id!r} needs a 'message': the question to the approvers", mark)
    names = notes.read_names(fields.get("approvers"), (*path, "approvers"), f"'approvers' of node {node_id!r}")
    message = _read_text(path, "message", fields.get("message"), notes)
    return {**message, "approvers": names, **notes.read_plain(fields, "timeout_seconds", path)}


def read_call(node_id: str, mark: Mark, fields: Fields, notes: Notes) -> dict[str, Any]:
    """Read a node that runs a child workflow."""
    path = ("nodes", node_id)
    if is_missing(fields.get("workflow")):
        notes.report(f"node {node_id!r} needs a 'workflow': the id of the workflow to run", mark)
    return {
        "workflow": UNREAD_WORKFLOW,
        **_read_text(path, "workflow", fields.get("workflow"), notes),
        "inputs": notes.read_mapping(fields.get("inputs"), (*path, "inputs"), f"'inputs' of node {node_id!r}"),
        **notes.read_plain(fields, "timeout_seconds", path),
    }


def _read_duration(node_id: str, located: Located, notes: Notes) -> float:
    notes.place(("nodes", node_id, "seconds"), located)
    text = notes.read_text(located, f"the duration of node {node_id!r}")
    if text is None:
        return NEVER
    try:
        return read_duration(text)
    except ValueError as error:
        notes.report(f"'duration' of node {node_id!r}: {error}", located.mark)
        return NEVER


def _read_text(path: Path, key: str, located: Located | None, notes: Notes) -> dict[str, Any]:
    if located is None:
        return {}
    notes.place((*path, key), located)
    text = notes.read_text(located, f"{key!r} of node {path[-1]!r}")
    return {} if text is None else {key: text}
