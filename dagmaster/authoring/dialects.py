"""Read every notation of a node into the form of the model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from dagmaster.authoring.conditionals import read_conditional
from dagmaster.authoring.fields import Fields, Notes, is_missing, reason_of
from dagmaster.authoring.positions import Located, Mark
from dagmaster.authoring.wait_nodes import WAITS_FOR, read_approval, read_call, read_wait
from dagmaster.model import workflow
from dagmaster.model.problems import Path, did_you_mean, find_close
from dagmaster.model.retry import OnOom, RetryPolicy
from dagmaster.model.workflow import Aggregation, Node

# Placeholder for an unreadable handler, so that the mistake is reported once.
UNREAD: Final = "(unread)"

_CLASSES: Final[dict[str, type[Node]]] = {
    "task": workflow.TaskNode,
    "start": workflow.StartNode,
    "end": workflow.EndNode,
    "conditional": workflow.ConditionalNode,
    "fan_out": workflow.FanOutNode,
    "fan_in": workflow.FanInNode,
    "wait": workflow.WaitNode,
    "approval": workflow.ApprovalNode,
    "workflow": workflow.WorkflowNode,
}
_COMMON_KEYS: Final = ("type", "description", "next", "depends_on")
_TASK_KEYS: Final = ("handler", "task_type", "queue", "params", "timeout_seconds", "retry", "retries")
_LEAVE: Final = "allow_failure"
_KEYS: Final = {
    "task": (*_TASK_KEYS, _LEAVE),
    "start": (),
    "end": (),
    "conditional": ("condition", "condition_field", "on_true", "on_false", "branches", "default", "retry", "retries"),
    "fan_out": ("source", "task", "child_node", "max_parallel", "queue", "timeout_seconds", "retry", "retries", _LEAVE),
    "fan_in": ("source_node", "aggregation", "aggregation_mode", "retry", "retries"),
    "wait": (*WAITS_FOR, "timeout_seconds", _LEAVE),
    "approval": ("message", "approvers", "timeout_seconds", _LEAVE),
    "workflow": ("workflow", "inputs", "timeout_seconds", "retry", "retries", _LEAVE),
}
_ALL_KEYS: Final = tuple(dict.fromkeys((*_COMMON_KEYS, *(key for keys in _KEYS.values() for key in keys))))


@dataclass(slots=True)
class Draft:
    """A node in the form of the model, still mutable. `child_node` is the template that a fan-out names."""

    node_id: str
    mark: Mark
    raw: dict[str, Any]
    child_node: str | None = None

    @property
    def type(self) -> str:
        return str(self.raw["type"])


def read_nodes(located: Located, notes: Notes) -> dict[str, Draft]:
    """The nodes by id, from a mapping or from a list of mappings with `id`."""
    drafts: dict[str, Draft] = {}
    for node_id, mark, body in _bodies(located, notes):
        if node_id in drafts:
            notes.report(f"the node id {node_id!r} is used twice, first on line {drafts[node_id].mark.line}", mark)
            notes.has_lost_links = True
            continue
        notes.place_mark(("nodes", node_id), mark)
        drafts[node_id] = _NodeReader(node_id, mark, notes).read(body)
    return drafts


def build_node(draft: Draft, notes: Notes) -> Node:
    """The model's node. A value that the model rejects is reported and omitted."""
    model = _CLASSES[draft.type]
    try:
        return model.model_validate(draft.raw)
    except ValidationError as error:
        for fault in error.errors():
            _report_refused(draft.node_id, fault["loc"], fault["msg"], fault["input"], notes)
            draft.raw.pop(str(fault["loc"][0]), None)
        _fill_in(draft.raw)
        return model.model_validate(draft.raw)


def _report_refused(node_id: str, path: Path, reason: str, value: Any, notes: Notes) -> None:
    actual = f", not {value!r}" if isinstance(value, str | int | float) and len(repr(value)) < 40 else ""
    message = f"{'.'.join(map(str, path))!r} of node {node_id!r}: {reason_of(reason)}{actual}"
    notes.report_at(("nodes", node_id, *path), message)


def _fill_in(raw: dict[str, Any]) -> None:
    unread = {"handler": UNREAD, "queue": UNREAD}
    match raw["type"]:
        case "task":
            raw |= {key: value for key, value in unread.items() if key not in raw}
        case "fan_out":
            raw.setdefault("task", unread)
            raw.setdefault("source", [])
        case "wait" if not {"until", "seconds", "signal"} & raw.keys():
            raw["seconds"] = 0.0
            raw.pop("timeout_seconds", None)
        case "workflow":
            raw.setdefault("workflow", UNREAD)


def _bodies(located: Located, notes: Notes) -> Iterator[tuple[str, Mark, Located]]:
    match located.value:
        case dict() as entries:
            for node_id, entry in entries.items():
                yield node_id, entry.key_mark or entry.mark, entry
        case list() as items:
            for item in items:
                yield from _listed(item, notes)
        case _ if not located.is_broken:
            notes.report("'nodes' must be a mapping of ids to nodes", located.mark)


def _listed(item: Located, notes: Notes) -> Iterator[tuple[str, Mark, Located]]:
    entries: Fields = item.value if isinstance(item.value, dict) else {}
    id_entry = entries.get("id")
    node_id = notes.read_text(id_entry, "the id of a node")
    if id_entry is None or not node_id:
        notes.has_lost_links = True
        if not item.is_broken:
            notes.report("each node in the list must be a mapping with an 'id'", item.mark)
        return
    fields = {key: entry for key, entry in entries.items() if key != "id"}
    yield node_id, id_entry.mark, Located(fields, item.mark)


class _NodeReader:
    def __init__(self, node_id: str, mark: Mark, notes: Notes) -> None:
        self._node_id = node_id
        self._mark = mark
        self._notes = notes
        self._path: Path = ("nodes", node_id)
        self._label = f"node {node_id!r}"

    def read(self, body: Located) -> Draft:
        fields = self._notes.read_fields(body, _ALL_KEYS, self._label)
        if body.is_broken or not isinstance(body.value, dict | None):
            self._notes.has_lost_links = True
            return Draft(self._node_id, self._mark, {"type": "task", "handler": UNREAD, "queue": UNREAD})
        if body.value and len(fields) < len(body.value):
            self._notes.has_lost_links = True  # an unknown key may be a misspelt one
        node_type = self._type(fields)
        fields = self._own_fields(fields, node_type)
        raw = {
            "type": node_type,
            **self._common(fields),
            **self._special(node_type, fields),
            **self._allow_failure(fields),
        }
        return Draft(self._node_id, self._mark, raw, self._child_node(fields.get("child_node")))

    # The type, and the keys that it has

    def _type(self, fields: Fields) -> str:
        if "type" not in fields:
            return self._guess_type(fields)
        text = (self._notes.read_text(fields["type"], f"the type of {self._label}") or "task").lower()
        if text in _CLASSES:
            return text
        suggestion = None if text == "fan_out_target" else find_close(text, _CLASSES)
        hint = f"did you mean {suggestion!r}?" if suggestion else f"types are {', '.join(_CLASSES)}"
        if text == "fan_out_target":
            hint = "it is not supported; write the task under 'task:' in the fan_out"
        self._notes.report(f"unknown type {text!r} of {self._label}; {hint}", fields["type"].mark)
        return suggestion or self._guess_type(fields, is_reported=True)

    def _guess_type(self, fields: Fields, *, is_reported: bool = False) -> str:
        if "handler" in fields or "task_type" in fields:
            return "task"
        if self._node_id.upper() in ("START", "END"):
            return self._node_id.lower()
        owners = {
            name for name, keys in _KEYS.items() if name != "task" and set(fields) & (set(keys) - {*_TASK_KEYS, _LEAVE})
        }
        if len(owners) != 1:
            return "task"
        owner = owners.pop()
        if not is_reported:
            self._notes.report(f"{self._label} has no type; it looks like 'type: {owner}'", self._mark)
        return owner

    def _own_fields(self, fields: Fields, node_type: str) -> Fields:
        """Report keys that do not belong to this type; keys of a task are harmless."""
        own_keys = (*_COMMON_KEYS, *_KEYS[node_type])
        own = {key: entry for key, entry in fields.items() if key in own_keys}
        for key, entry in fields.items():
            if key in own_keys:
                continue
            mark = entry.key_mark or entry.mark
            if key in _TASK_KEYS:
                self._notes.report(f"{key!r} has no effect on the {node_type} {self._node_id!r}", mark, "warning")
                continue
            suggestion = find_close(key, [name for name in own_keys if name not in own])
            hint = f"; did you mean {suggestion!r}?" if suggestion else ""
            self._notes.report(f"{key!r} does not belong to the {node_type} {self._node_id!r}{hint}", mark)
            if suggestion:
                own[suggestion] = entry
        return own

    # The fields

    def _common(self, fields: Fields) -> dict[str, Any]:
        description = self._notes.read_text(fields.get("description"), f"the description of {self._label}")
        return {
            "description": description or "",
            "next": self._notes.read_names(fields.get("next"), (*self._path, "next"), f"'next' of {self._label}"),
            "depends_on": self._depends_on(fields.get("depends_on")),
        }

    def _depends_on(self, located: Located | None) -> dict[str, Any] | None:
        if located is None:
            return None
        label, path = f"'depends_on' of {self._label}", (*self._path, "depends_on")
        if isinstance(located.value, dict):
            parts = self._notes.read_fields(located, ("all_of", "any_of"), label)
        else:
            parts = {"all_of": located}
        names = {key: self._notes.read_names(part, (*path, key), label) for key, part in parts.items()}
        return names if any(names.values()) else None

    def _allow_failure(self, fields: Fields) -> dict[str, Any]:
        label = f"{_LEAVE!r} of {self._label}"
        return {_LEAVE: True} if self._notes.read_flag(fields.get(_LEAVE), label, default=False) else {}

    def _special(self, node_type: str, fields: Fields) -> dict[str, Any]:
        arguments = self._node_id, self._mark, fields, self._notes
        match node_type:
            case "task":
                return self._task(fields, self._path, self._label, self._mark)
            case "conditional":
                return read_conditional(*arguments) | self._retry_here(fields)
            case "fan_out":
                return self._fan_out(fields)
            case "fan_in":
                return self._fan_in(fields)
            case "wait":
                return read_wait(*arguments)
            case "approval":
                return read_approval(*arguments)
            case "workflow":
                return read_call(*arguments) | self._retry_here(fields)
            case _:
                return {}

    def _task(self, fields: Fields, path: Path, label: str, mark: Mark) -> dict[str, Any]:
        handler = fields.get("handler") or fields.get("task_type")
        if is_missing(handler):
            self._notes.report(f"{label} needs a 'handler'", mark)
        elif handler is not None:
            self._notes.place((*path, "handler"), handler)
        name = self._notes.read_text(handler, f"the handler of {label}")
        queue = self._notes.read_text(fields.get("queue"), f"the queue of {label}")
        return {
            "handler": name or UNREAD,
            "queue": queue or (None if name else UNREAD),
            "params": self._notes.read_mapping(fields.get("params"), (*path, "params"), f"'params' of {label}"),
            **self._notes.read_plain(fields, "timeout_seconds", path),
            **self._retry(fields, path),
        }

    def _retry(self, fields: Fields, path: Path) -> dict[str, Any]:
        """`retries: 3` is short for `retry: {retries: 3}`."""
        located, retries = fields.get("retry"), fields.get("retries")
        if located is None or located.value is None:
            if retries is None or retries.value is None:
                return {}
            self._notes.place((*path, "retry"), retries)
            return {"retry": {"retries": retries.plain}}
        if retries is not None:
            self._notes.report(
                f"{self._label} has both 'retry' and 'retries'; put 'retries' into 'retry'", retries.mark
            )
        self._notes.place((*path, "retry"), located)
        parts = self._notes.read_fields(located, ("retries", *RetryPolicy.model_fields), f"'retry' of {self._label}")
        retry = {key: part.plain for key, part in parts.items()}
        if isinstance(retry.get("backoff"), str):
            retry["backoff"] = retry["backoff"].lower()
        if "on_oom" in parts:
            retry["on_oom"] = self._on_oom(parts["on_oom"])
        return {"retry": retry}

    def _on_oom(self, located: Located) -> Any:
        """Read a queue as a string, also in the short form."""
        if not isinstance(located.value, dict):
            return located.value if isinstance(located.value, list | None) else located.text
        parts = self._notes.read_fields(located, tuple(OnOom.model_fields), f"'on_oom' of {self._label}")
        if is_missing(parts.get("queue")):
            return {}
        return {"queue": self._notes.read_text(parts["queue"], f"the queue of 'on_oom' of {self._label}") or UNREAD}

    def _retry_here(self, fields: Fields) -> dict[str, Any]:
        """For a node that no worker executes: it has no queue to change."""
        raw = self._retry(fields, self._path)
        if "on_oom" in raw.get("retry", {}):
            self._notes.report(f"'on_oom' has no effect on {self._label}", fields["retry"].mark, "warning")
        return raw

    def _fan_out(self, fields: Fields) -> dict[str, Any]:
        source = fields.get("source")
        if is_missing(source):
            self._notes.report(f"the fan_out {self._node_id!r} needs a 'source': the list to process", self._mark)
        elif source is not None:
            self._notes.place((*self._path, "source"), source)
        return {
            "source": source.plain if source and source.value is not None else [],
            "task": self._child(fields),
            **self._notes.read_plain(fields, "max_parallel", self._path),
            **self._retry(fields, self._path),
        }

    def _child(self, fields: Fields) -> dict[str, Any]:
        """The inline task, or the known part of it before the template is folded in."""
        located = fields.get("task")
        if is_missing(located) == ("child_node" not in fields):
            message = f"the fan_out {self._node_id!r} needs either a 'task' or a 'child_node'"
            self._notes.report(message, located.mark if located else self._mark)
        if located is None or not isinstance(located.value, dict):
            if located is not None and located.value is not None:
                self._notes.report(f"the task of {self._label} must be a mapping with a 'handler'", located.mark)
            unread = {} if "child_node" in fields else {"handler": UNREAD, "queue": UNREAD}
            return self._inherit(fields, unread)
        label, mark = f"the task of {self._label}", located.key_mark or located.mark
        parts = self._notes.read_fields(located, (*_TASK_KEYS, "type", "description"), label)
        self._notes.place_mark((*self._path, "task"), mark)
        return self._inherit(fields, self._task(parts, (*self._path, "task"), label, mark))

    def _inherit(self, fields: Fields, task: dict[str, Any]) -> dict[str, Any]:
        """The queue of the fan-out takes precedence over that of its task."""
        queue = self._notes.read_text(fields.get("queue"), f"the queue of {self._label}")
        return {
            **self._notes.read_plain(fields, "timeout_seconds", self._path),
            **task,
            "queue": queue or task.get("queue"),
        }

    def _child_node(self, located: Located | None) -> str | None:
        if located is None:
            return None
        self._notes.place((*self._path, "child_node"), located)
        return self._notes.read_text(located, f"the child_node of {self._label}")

    def _fan_in(self, fields: Fields) -> dict[str, Any]:
        raw = self._retry_here(fields)
        if source := fields.get("source_node"):
            self._notes.place((*self._path, "source_node"), source)
            raw["source_node"] = self._notes.read_text(source, f"the source_node of {self._label}")
        if located := fields.get("aggregation") or fields.get("aggregation_mode"):
            mode = (self._notes.read_text(located, f"the aggregation of {self._label}") or "collect").lower()
            if mode not in list(Aggregation):
                hint = did_you_mean(mode, list(Aggregation)) or f"; known are {', '.join(Aggregation)}"
                self._notes.report(f"unknown aggregation {mode!r} in {self._label}{hint}", located.mark)
                mode = "collect"
            raw["aggregation"] = mode
        return raw
