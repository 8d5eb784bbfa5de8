"""The inputs of a workflow as the fields of a form."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dagmaster.errors import InvalidInputs
from dagmaster.model.inputs import accept
from dagmaster.model.redact import redact
from dagmaster.model.workflow import InputFormat, InputSpec, InputType, Workflow
from dagmaster.web.ui.filters import pretty

Control = Literal[
    "text", "long", "secret", "number", "check", "choice", "json", "date", "time", "datetime-local", "url"
]

LONG_TEXT: Final = 80
_HAS_ZONE: Final = re.compile(r"(?:Z|[+-]\d\d:?\d\d)$", re.IGNORECASE)
_CONTROLS: Final[Mapping[InputFormat, Control]] = {
    InputFormat.DATE: "date",
    InputFormat.TIME: "time",
    InputFormat.DATE_TIME: "datetime-local",
    InputFormat.URI: "url",
}


@dataclass(frozen=True, slots=True)
class Field:
    """`text` is the initial content and `default` the value of an empty field, both as a user types them."""

    name: str
    kind: InputType
    control: Control
    is_required: bool
    description: str
    text: str
    default: str | None
    is_hidden: bool = False
    choices: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    allowed: str = ""

    @property
    def step(self) -> str:
        return "1" if self.kind is InputType.INTEGER else "any"


@dataclass(frozen=True, slots=True)
class Form:
    """`extra` holds undeclared values of the earlier job; `hidden` names those that are secret."""

    fields: list[Field]
    extra: Mapping[str, Any]
    hidden: list[str]


def form_of(workflow: Workflow, inputs: Mapping[str, Any] | None = None) -> Form:
    """Filled with the defaults, or with the inputs of an earlier job."""
    visible = {name: value for name, value in (inputs or {}).items() if redact({name: value}) == {name: value}}
    hidden = [name for name in inputs or {} if name not in visible]
    fields = [
        _field(name, spec, visible.get(name, None if name in hidden else spec.default), is_hidden=name in hidden)
        for name, spec in workflow.inputs.items()
    ]
    extra = {name: value for name, value in visible.items() if name not in workflow.inputs}
    return Form(fields, extra, hidden)


def _field(name: str, spec: InputSpec, value: Any, *, is_hidden: bool) -> Field:
    try:
        text = "" if value is None else typed(accept(value, spec))
    except InvalidInputs:
        # The workflow has changed since that job, and the value is no longer valid.
        text = "" if spec.default is None else typed(spec.default)
    return Field(
        name=name,
        kind=spec.type,
        control=_control(name, spec, text),
        is_required=spec.required,
        description=spec.description,
        text=text,
        default=None if spec.default is None else typed(spec.default),
        is_hidden=is_hidden,
        choices=tuple(map(typed, spec.enum)) or (("true", "false") if spec.type is InputType.BOOLEAN else ()),
        limits={
            name: typed(limit) for name, limit in (("min", spec.minimum), ("max", spec.maximum)) if limit is not None
        },
        allowed="" if spec.enum else allowed_values(spec),  # The field offers the choices itself.
    )


def allowed_values(spec: InputSpec) -> str:
    if spec.enum:
        return f"one of {', '.join(map(str, spec.enum))}"
    if spec.minimum is not None and spec.maximum is not None:
        return f"{spec.minimum:g} to {spec.maximum:g}"
    if spec.minimum is not None:
        return f"{spec.minimum:g} or more"
    if spec.maximum is not None:
        return f"{spec.maximum:g} or less"
    return spec.format or ""


def _control(name: str, spec: InputSpec, text: str) -> Control:
    if spec.enum:
        return "choice"
    match spec.type:
        case InputType.INTEGER | InputType.NUMBER:
            return "number"
        case InputType.ARRAY | InputType.OBJECT:
            return "json"
        case InputType.BOOLEAN:
            # A checkbox is on or off; without a default there is a third state.
            return "check" if isinstance(spec.default, bool) else "choice"
    if spec.secret or redact({name: "x"}) != {name: "x"}:
        return "secret"
    if spec.format is not None and (control := _CONTROLS.get(spec.format)) and _can_show(control, text):
        return control
    return "long" if "\n" in text or len(text) > LONG_TEXT else "text"


def _can_show(control: Control, text: str) -> bool:
    """Date and time fields of browsers have no time zone; a value with a time zone needs a text field."""
    return control != "datetime-local" or not _HAS_ZONE.search(text)


def typed(value: Any) -> str:
    """The value as a user types it into its field."""
    if isinstance(value, str):
        return value
    flat = json.dumps(value, ensure_ascii=False, default=str)
    return flat if len(flat) <= LONG_TEXT or not isinstance(value, list | dict) else pretty(value)
