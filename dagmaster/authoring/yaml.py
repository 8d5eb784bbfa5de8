"""Read workflow files. Every notation results in the same frozen Workflow."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from dagmaster.authoring.dialects import UNREAD, build_node, read_nodes
from dagmaster.authoring.fields import Fields, Notes, is_missing, reason_of
from dagmaster.authoring.implicit import QueueRules, add_ends, alias_ends, resolve_queues
from dagmaster.authoring.positions import MAX_FILE_CHARS, Located, read_yaml
from dagmaster.authoring.schedules import read_schedule
from dagmaster.authoring.templates import fold_templates
from dagmaster.model.checks import MAX_NODES
from dagmaster.model.inputs import WrongType, fit
from dagmaster.model.problems import InvalidWorkflow, Problem, find_close
from dagmaster.model.scopes import find_undeclared_inputs
from dagmaster.model.workflow import (
    MAX_RETENTION_DAYS,
    MAX_WAIT_SECONDS,
    InputFormat,
    InputSpec,
    InputType,
    Node,
    Workflow,
)

__all__ = ["QueueRules", "load_workflow", "parse_workflow", "read_file", "read_workflow"]

_KEYS: Final = tuple(field.alias or name for name, field in Workflow.model_fields.items() if name != "returns")
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.0*)?")
_EXTENSION: Final = re.compile(r"(\.[A-Za-z0-9]{1,10}){1,3}")
_INPUT_KEYS: Final = tuple(InputSpec.model_fields)
_OTHER_NAMES: Final = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "map": "object",
    "mapping": "object",
}
_TYPES_OF_DEFAULTS: Final = {
    bool: InputType.BOOLEAN,
    int: InputType.INTEGER,
    float: InputType.NUMBER,
    list: InputType.ARRAY,
    dict: InputType.OBJECT,
}


def load_workflow(path: Path, *, queues: QueueRules) -> Workflow:
    """Raise InvalidWorkflow, also if the file cannot be read."""
    workflow, problems = read_file(path, queues=queues)
    if workflow is None:
        raise InvalidWorkflow(problems)
    return workflow


def read_file(path: Path, *, queues: QueueRules) -> tuple[Workflow | None, tuple[Problem, ...]]:
    """As `read_workflow`."""
    try:
        if path.stat().st_size > MAX_FILE_CHARS:
            return None, (Problem(f"the file is larger than {MAX_FILE_CHARS} bytes", file=str(path)),)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return None, (Problem(f"the file cannot be read: {error.strerror}", file=str(path)),)
    except UnicodeDecodeError as error:
        return None, (Problem(f"the file is not UTF-8: {error.reason}", file=str(path)),)
    return read_workflow(text, file=str(path), queues=queues)


def parse_workflow(text: str, *, file: str | None = None, queues: QueueRules) -> Workflow:
    """Raise InvalidWorkflow with all problems, sorted by line, if one of them is an error."""
    workflow, problems = read_workflow(text, file=file, queues=queues)
    if workflow is None or any(problem.is_error for problem in problems):
        raise InvalidWorkflow(problems)
    return workflow


def read_workflow(
    text: str, *, file: str | None = None, queues: QueueRules
) -> tuple[Workflow | None, tuple[Problem, ...]]:
    """The workflow, or None if it has errors; and all problems, warnings included.

    A workflow that only lacks a queue is returned anyway: a worker may register one for its handler later.
    """
    try:
        document, unreadable = read_yaml(text, file)
    except InvalidWorkflow as error:
        return None, error.problems
    notes = Notes(file, unreadable)
    workflow = _read_document(document, queues, notes)
    problems = tuple(sorted(notes.problems, key=lambda problem: (problem.line or 0, problem.column or 0)))
    is_sound = all(problem.is_about_queue for problem in problems if problem.is_error)
    return workflow if is_sound else None, problems


def _read_document(document: Located, queues: QueueRules, notes: Notes) -> Workflow | None:
    if not isinstance(document.value, dict):
        notes.report("the file must be a mapping with 'workflow_id' and 'nodes'", document.mark)
        return None
    fields = notes.read_fields(_without_extensions(document), _KEYS, "the workflow")
    takes_any_input = "inputs" not in fields and is_missing(fields.get("additional_inputs"))
    notes.place_mark((), document.mark)
    head = _read_head(fields, document, notes)
    head["additional_inputs"] = head["additional_inputs"] or takes_any_input
    nodes = _read_nodes(fields, document, notes, (*head["on_failure"], *head["finally"]))
    if not nodes:
        return None
    workflow = resolve_queues(_build(head, nodes, notes), queues)
    has_all_links = not (notes.has_lost_links and notes.has_errors)
    problems = queues.find_problems(workflow, {UNREAD}, has_all_links=has_all_links)
    notes.problems += [notes.locate(problem) for problem in problems]
    if takes_any_input:
        notes.problems += [notes.locate(problem) for problem in find_undeclared_inputs(workflow)]
    return workflow


def _without_extensions(document: Located) -> Located:
    """Keys that start with `x-` belong to the author, for example for YAML anchors."""
    entries = {key: entry for key, entry in document.value.items() if not key.startswith("x-")}
    return Located(entries, document.mark)


# The head


def _read_head(fields: Fields, document: Located, notes: Notes) -> dict[str, Any]:
    for key in ("workflow_id", "name", "description", "version"):
        if key in fields:
            notes.place((key,), fields[key])
    if is_missing(fields.get("workflow_id")):
        notes.report("the workflow needs a 'workflow_id'", document.mark)
    workflow_id = notes.read_text(fields.get("workflow_id"), "'workflow_id'") or UNREAD
    return {
        "workflow_id": workflow_id,
        "name": notes.read_text(fields.get("name"), "'name'") or workflow_id,
        "version": _read_version(fields.get("version"), notes),
        "description": notes.read_text(fields.get("description"), "'description'") or "",
        "inputs": _read_inputs(fields.get("inputs"), notes),
        "additional_inputs": notes.read_flag(fields.get("additional_inputs"), "'additional_inputs'", default=False),
        "is_active": notes.read_flag(fields.get("is_active"), "'is_active'", default=True),
        "globals": notes.read_mapping(fields.get("globals"), ("globals",), "'globals'"),
        "retention_days": _read_limited(fields, "retention_days", MAX_RETENTION_DAYS, notes),
        "timeout_seconds": _read_limited(fields, "timeout_seconds", MAX_WAIT_SECONDS, notes),
        "on_failure": notes.read_names(fields.get("on_failure"), ("on_failure",), "'on_failure'"),
        "finally": notes.read_names(fields.get("finally"), ("finally",), "'finally'"),
        "schedule": read_schedule(fields.get("schedule"), notes),
    }


def _read_version(located: Located | None, notes: Notes) -> int:
    if located is None or located.value is None:
        return 1
    match located.value:
        case str(text) if _WHOLE_NUMBER.fullmatch(text.strip()):
            return int(text.strip().partition(".")[0])
        case float(number) if number.is_integer():
            return int(number)
        case int(number) if not isinstance(number, bool):
            return number
    notes.report("'version' must be an integer", located.mark)
    return 1


def _read_limited(fields: Fields, key: str, maximum: int, notes: Notes) -> float | None:
    located = fields.get(key)
    if located is None or located.value is None:
        return None
    match located.value:
        case int() | float() as number if not isinstance(number, bool) and 0 < number <= maximum:
            return float(number)
    notes.report(f"{key!r} must be a number above 0 and up to {maximum}", located.mark)
    return None


def _build(head: dict[str, Any], nodes: dict[str, Node], notes: Notes) -> Workflow:
    try:
        return Workflow(**head, nodes=nodes)
    except ValidationError as error:
        for fault in error.errors():
            key = str(fault["loc"][0])
            notes.report_at((key,), f"{key!r}: {reason_of(fault['msg'])}")
            head[key] = UNREAD
        return Workflow(**head, nodes=nodes)


# Inputs


def _read_inputs(located: Located | None, notes: Notes) -> dict[str, InputSpec]:
    if located is None or located.value is None:
        return {}
    if not isinstance(located.value, dict):
        notes.report("'inputs' must be a mapping of names to types", located.mark)
        return {}
    return {name: _read_input(name, entry, notes) for name, entry in located.value.items()}


def _read_input(name: str, located: Located, notes: Notes) -> InputSpec:
    """`x: string` is short for `x: {type: string}`. Without a type, the default shows it."""
    notes.place_mark(("inputs", name), located.key_mark or located.mark)
    if isinstance(located.value, str):
        return InputSpec(type=_read_type(name, located, notes) or InputType.STRING)
    fields = notes.read_fields(located, _INPUT_KEYS, f"input {name!r}")
    default = None
    if "default" in fields:
        notes.place(("inputs", name, "default"), fields["default"])
        default = fields["default"].plain
    kind = _read_type(name, fields.get("type"), notes) or _TYPES_OF_DEFAULTS.get(type(default), InputType.STRING)
    required = notes.read_flag(fields.get("required"), f"'required' of input {name!r}", default=True)
    return InputSpec(
        type=kind,
        required=required and default is None,
        default=_as_declared(default, kind),
        description=notes.read_text(fields.get("description"), f"the description of input {name!r}") or "",
        secret=notes.read_flag(fields.get("secret"), f"'secret' of input {name!r}", default=False),
        enum=_read_enum(name, fields.get("enum"), kind, notes),
        minimum=_read_limit(name, "minimum", fields.get("minimum"), notes),
        maximum=_read_limit(name, "maximum", fields.get("maximum"), notes),
        format=_read_format(name, fields.get("format"), notes),
        extensions=_read_extensions(name, fields.get("extensions"), notes),
    )


def _read_enum(name: str, located: Located | None, kind: InputType, notes: Notes) -> tuple[Any, ...]:
    if located is None:
        return ()
    if not isinstance(located.value, list) or not located.value:
        notes.report(f"'enum' of input {name!r} must be a list of the allowed values", located.mark)
        return ()
    return tuple(_as_declared(value, kind) for value in located.plain)


def _read_extensions(name: str, located: Located | None, notes: Notes) -> tuple[str, ...]:
    if located is None:
        return ()
    values = located.plain if isinstance(located.value, list) else []
    if not values or not all(isinstance(value, str) and _EXTENSION.fullmatch(value) for value in values):
        notes.report(f"'extensions' of input {name!r} must be a list such as [.tif, .tiff]", located.mark)
        return ()
    return tuple(value.lower() for value in values)


def _read_limit(name: str, key: str, located: Located | None, notes: Notes) -> int | float | None:
    if located is None:
        return None
    if isinstance(located.value, bool) or not isinstance(located.value, int | float):
        notes.report(f"{key!r} of input {name!r} must be a number", located.mark)
        return None
    return located.value


def _read_format(name: str, located: Located | None, notes: Notes) -> InputFormat | None:
    text = notes.read_text(located, f"the format of input {name!r}")
    if text is None or located is None:
        return None
    if text in list(InputFormat):
        return InputFormat(text)
    notes.report(f"unknown format {text!r} of input {name!r}; formats are {', '.join(InputFormat)}", located.mark)
    return None


def _read_type(name: str, located: Located | None, notes: Notes) -> InputType | None:
    text = (notes.read_text(located, f"the type of input {name!r}") or "").lower()
    if not text or located is None:
        return None
    if text in list(InputType):
        return InputType(text)
    suggestion = _OTHER_NAMES.get(text) or find_close(text, list(InputType))
    hint = f"did you mean {suggestion!r}?" if suggestion else f"types are {', '.join(InputType)}"
    notes.report(f"unknown type {text!r} of input {name!r}; {hint}", located.mark)
    return InputType(suggestion) if suggestion else None


def _as_declared(default: Any, kind: InputType) -> Any:
    """3.0 becomes 3 for an integer. A default of the wrong type is reported with the other problems."""
    try:
        return None if default is None else fit(default, kind)
    except WrongType:
        return default


# Nodes


def _read_nodes(fields: Fields, document: Located, notes: Notes, heads: Collection[str]) -> dict[str, Node]:
    located = fields.get("nodes")
    if located is None or not located.value:
        if is_missing(located) or (located is not None and not located.is_broken):
            notes.report("the workflow needs 'nodes'", located.mark if located else document.mark)
        return {}
    notes.place_mark(("nodes",), located.key_mark or located.mark)
    if isinstance(located.value, dict | list) and len(located.value) > MAX_NODES:
        notes.report(f"a workflow may have at most {MAX_NODES} nodes, not {len(located.value)}", located.mark)
        return {}
    drafts = fold_templates(read_nodes(located, notes), notes)
    alias_ends(drafts)
    nodes = {node_id: build_node(draft, notes) for node_id, draft in drafts.items()}
    return add_ends(nodes, heads) if nodes else {}
