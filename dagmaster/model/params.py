"""Literal parameters of tasks, validated against the JSON Schema of their handler.

Workers parse parameters with pydantic, where `"3"` passes for an integer. This module is as lenient: it never rejects
a value that a worker would accept, and leaves formats, patterns and unknown keywords to the worker.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from dagmaster.model.contracts import Contracts
from dagmaster.model.problems import Path, Problem, did_you_mean
from dagmaster.model.redact import redact
from dagmaster.model.references import describe
from dagmaster.model.workflow import ChildTask, Workflow

# In a schema: the handler's own code parses this value, and may accept more than the schema says.
READ_BY_CODE: Final = "x-read-by-code"

MAX_DEPTH: Final = 40
MAX_STEPS: Final = 20_000
MAX_FAULTS: Final = 20
MAX_DESCRIPTION: Final = 500
_WHOLE_INPUT: Final = re.compile(r"\s*\{\{\s*inputs\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}\s*")
# An argument for the first parameter when its name is unknown. Not a valid parameter name.
FIRST_PARAMETER: Final = "*first"
_REFERENCE: Final = "#/$defs/"
_FLAGS: Final = frozenset({"true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "1", "0"})
_NAMES: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`path` leads from the parameters to the rejected value."""

    path: Path
    message: str


def find_param_problems(workflow: Workflow, contracts: Contracts) -> Iterator[Problem]:
    """Parameters that a handler rejects: an error if every worker with the handler does, else a warning.

    Workers may run newer or older code than the registered contract.
    """
    for path, task in workflow.tasks():
        contract = contracts.get(task.handler)
        if contract is None or contract.params is None:
            continue
        for fault in find_faults({**workflow.globals, **task.params}, contract.params):
            is_global = bool(fault.path) and fault.path[0] not in task.params and fault.path[0] in workflow.globals
            yield Problem(
                f"node {path[1]!r}: handler {task.handler!r} {fault.message}",
                ("globals", *fault.path) if is_global else (*path, "params", *fault.path),
                severity="error" if contract.is_uniform else "warning",
                about="params",
            )


def described(workflow: Workflow, contracts: Contracts) -> Workflow:
    """Copy descriptions from parameters to inputs that are passed on unchanged and have none."""
    descriptions = {
        name: text
        for _, task in workflow.tasks()
        if (contract := contracts.get(task.handler)) is not None and contract.params is not None
        for name, text in _descriptions(task, contract.params)
    }
    inputs = {
        name: spec.model_copy(update={"description": descriptions[name]})
        if name in descriptions and not spec.description
        else spec
        for name, spec in workflow.inputs.items()
    }
    return workflow.model_copy(update={"inputs": inputs}) if descriptions else workflow


def _descriptions(task: ChildTask, schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    properties = schema.get("properties")
    for name, value in task.params.items():
        known = properties.get(name) if isinstance(properties, Mapping) else None
        text = known.get("description") if isinstance(known, Mapping) else None
        reference = _WHOLE_INPUT.fullmatch(value) if isinstance(value, str) else None
        if reference and isinstance(text, str) and text:
            yield reference[1], text[:MAX_DESCRIPTION]


def find_faults(params: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Fault]:
    """At most MAX_FAULTS. The schema is registered by others and may hold anything."""
    return list(islice(_Judge(schema).judge(dict(params), schema, (), 0), MAX_FAULTS))


class _Judge:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        definitions = schema.get("$defs")
        self._definitions = definitions if isinstance(definitions, Mapping) else {}
        self._steps = 0

    def judge(self, value: Any, schema: Any, path: Path, depth: int) -> Iterator[Fault]:
        self._steps += 1
        if depth > MAX_DEPTH or self._steps > MAX_STEPS or _is_expression(value):
            return
        if not isinstance(schema, Mapping) or schema.get(READ_BY_CODE):
            return
        if isinstance(reference := schema.get("$ref"), str) and reference.startswith(_REFERENCE):
            yield from self.judge(value, self._definitions.get(reference.removeprefix(_REFERENCE)), path, depth + 1)
        for part in _listed(schema.get("allOf")):
            yield from self.judge(value, part, path, depth + 1)
        for key in ("anyOf", "oneOf"):
            if options := _listed(schema.get(key)):
                yield from self._judge_options(value, options, path, depth)
        if wrong := _find_wrong_value(value, schema):
            yield Fault(path, _refusal(path, wrong, value))
            return
        match value:
            case dict():
                yield from self._judge_object(value, schema, path, depth)
            case list() | tuple():
                yield from self._judge_items(value, schema, path, depth)

    def _judge_options(self, value: Any, options: list[Any], path: Path, depth: int) -> Iterator[Fault]:
        all_faults = [list(self.judge(value, option, path, depth + 1)) for option in options]
        if not all(all_faults):
            return
        relevant = [faults for option, faults in zip(options, all_faults, strict=True) if not _is_null(option)]
        if len(relevant) == 1:
            yield from relevant[0]
            return
        kinds = list(dict.fromkeys(kind for option in options for kind in self._kinds(option)))
        expected = " or ".join(kinds) if kinds else "something else"
        yield Fault(path, _refusal(path, f"must be {expected}", value))

    def _kinds(self, schema: Any) -> list[str]:
        if isinstance(schema, Mapping) and isinstance(reference := schema.get("$ref"), str):
            schema = self._definitions.get(reference.removeprefix(_REFERENCE))
        if not isinstance(schema, Mapping):
            return []
        return [_NAMES[kind] for kind in _types(schema)]

    def _judge_object(
        self, value: Mapping[str, Any], schema: Mapping[str, Any], path: Path, depth: int
    ) -> Iterator[Fault]:
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        others = schema.get("additionalProperties", True)
        for key, part in value.items():
            if key in known:
                yield from self.judge(part, known[key], (*path, key), depth + 1)
            elif others is False and "patternProperties" not in schema and key != FIRST_PARAMETER:
                hint = did_you_mean(str(key), known)
                yield Fault((*path, key), f"takes no parameter {_name((*path, key))}{hint}")
            else:
                yield from self.judge(part, others, (*path, key), depth + 1)
        if FIRST_PARAMETER in value:
            return
        for key in _listed(schema.get("required")):
            if isinstance(key, str) and key not in value:
                yield Fault(path, f"needs the parameter {_name((*path, key))}")

    def _judge_items(self, value: Any, schema: Mapping[str, Any], path: Path, depth: int) -> Iterator[Fault]:
        first = _listed(schema.get("prefixItems"))
        for index, part in enumerate(value):
            item = first[index] if index < len(first) else schema.get("items")
            yield from self.judge(part, item, (*path, index), depth + 1)


def _is_expression(value: Any) -> bool:
    return isinstance(value, str) and "{{" in value


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _types(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type")
    named = [kinds] if isinstance(kinds, str) else _listed(kinds)
    return [kind for kind in named if isinstance(kind, str) and kind in _NAMES]


def _refusal(path: Path, wrong: str, value: Any) -> str:
    return f"rejects the parameter {_name(path)}: it {wrong}, not {_show(path, value)}"


def _name(path: Path) -> str:
    return repr(".".join(map(str, path)))


def _show(path: Path, value: Any) -> str:
    kind, written = describe(value), repr(value)
    key = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
    if isinstance(value, str | int | float) and len(written) < 40 and redact({key: value}) == {key: value}:
        return kind if isinstance(value, bool) else f"{kind} ({written})"
    return kind


def _find_wrong_value(value: Any, schema: Mapping[str, Any]) -> str | None:
    """The requirement that the value itself violates, or None."""
    allowed = [schema["const"]] if "const" in schema else _listed(schema.get("enum"))
    if allowed and not any(_is_same(value, choice) for choice in allowed):
        choices = ", ".join(map(repr, allowed[:10])) + (", ..." if len(allowed) > 10 else "")
        return f"must be {'one of ' if len(allowed) > 1 else ''}{choices}"
    kinds = _types(schema)
    if kinds and not any(_passes(value, kind, schema) for kind in kinds):
        return f"must be {' or '.join(_NAMES[kind] for kind in kinds)}"
    return _find_wrong_size(value, schema)


def _is_same(value: Any, allowed: Any) -> bool:
    return value == allowed or (type(value) is not type(allowed) and str(value).lower() == str(allowed).lower())


def _passes(value: Any, kind: str, schema: Mapping[str, Any]) -> bool:
    match kind:
        case "null":
            return value is None
        case "string":
            # Dates and times may also be numbers of seconds.
            return isinstance(value, str) or ("format" in schema and isinstance(value, int | float))
        case "integer":
            number = _number(value)
            return isinstance(number, int) or (number is not None and number.is_integer())
        case "number":
            return _number(value) is not None
        case "boolean":
            return isinstance(value, bool) or str(value).lower() in _FLAGS or value in (0.0, 1.0)
        case "array":
            return isinstance(value, list | tuple)
        case _:
            return isinstance(value, Mapping)


def _number(value: Any) -> int | float | None:
    if isinstance(value, int | float):
        return value
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None


# The keyword, how a value exceeds it, and the requirement.
_Limits = tuple[tuple[str, Callable[[Any, Any], bool], str], ...]
_NUMBER_LIMITS: Final[_Limits] = (
    ("minimum", operator.lt, "be at least {}"),
    ("maximum", operator.gt, "be at most {}"),
    ("exclusiveMinimum", operator.le, "be above {}"),
    ("exclusiveMaximum", operator.ge, "be below {}"),
)
_STRING_LIMITS: Final[_Limits] = (
    ("minLength", operator.lt, "have at least {} characters"),
    ("maxLength", operator.gt, "have at most {} characters"),
)
_LIST_LIMITS: Final[_Limits] = (
    ("minItems", operator.lt, "have at least {} items"),
    ("maxItems", operator.gt, "have at most {} items"),
)


def _find_wrong_size(value: Any, schema: Mapping[str, Any]) -> str | None:
    match value:
        case int() | float() if not isinstance(value, bool) and math.isfinite(value):
            size, limits = value, _NUMBER_LIMITS
        case str():
            size, limits = len(value), _STRING_LIMITS
        # A set ignores duplicates, so the length of the list proves nothing.
        case list() | tuple() if not schema.get("uniqueItems"):
            size, limits = len(value), _LIST_LIMITS
        case _:
            return None
    for keyword, exceeds, requirement in limits:
        limit = schema.get(keyword)
        if isinstance(limit, int | float) and not isinstance(limit, bool) and exceeds(size, limit):
            return f"must {requirement.format(limit)}"
    return None
