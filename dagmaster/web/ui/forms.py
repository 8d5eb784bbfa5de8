"""The inputs of a workflow as the fields of a form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from dagmaster.errors import InvalidInputs
from dagmaster.model.inputs import fit
from dagmaster.model.redact import redact
from dagmaster.model.workflow import InputSpec, InputType, Workflow
from dagmaster.web.ui.filters import pretty

Control = Literal["text", "long", "secret", "number", "check", "choice", "json"]

LONG_TEXT: Final = 80


@dataclass(frozen=True, slots=True)
class Field:
    """`text` is what it holds at first, `default` what is taken when it is left empty, both as they are typed."""

    name: str
    kind: InputType
    control: Control
    is_required: bool
    description: str
    text: str
    default: str | None
    is_hidden: bool = False

    @property
    def step(self) -> str:
        return "1" if self.kind is InputType.INTEGER else "any"


@dataclass(frozen=True, slots=True)
class Form:
    """`extra` was given and is not declared; `hidden` are the names of what was given and is not shown again."""

    fields: list[Field]
    extra: Mapping[str, Any]
    hidden: list[str]


def form_of(workflow: Workflow, given: Mapping[str, Any] | None = None) -> Form:
    """With the defaults, or with what an earlier job was given."""
    shown = {name: value for name, value in (given or {}).items() if redact({name: value}) == {name: value}}
    hidden = [name for name in given or {} if name not in shown]
    fields = [
        _field(name, spec, shown.get(name, None if name in hidden else spec.default), is_hidden=name in hidden)
        for name, spec in workflow.inputs.items()
    ]
    extra = {name: value for name, value in shown.items() if name not in workflow.inputs}
    return Form(fields, extra, hidden)


def _field(name: str, spec: InputSpec, value: Any, *, is_hidden: bool) -> Field:
    try:
        text = "" if value is None else typed(fit(value, spec.type))
    except InvalidInputs:
        # The workflow has changed since that job: its value fits no more.
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
    )


def _control(name: str, spec: InputSpec, text: str) -> Control:
    match spec.type:
        case InputType.INTEGER | InputType.NUMBER:
            return "number"
        case InputType.ARRAY | InputType.OBJECT:
            return "json"
        case InputType.BOOLEAN:
            # A box is either on or off: where nothing is chosen yet there are three answers.
            return "check" if isinstance(spec.default, bool) else "choice"
    if spec.secret or redact({name: "x"}) != {name: "x"}:
        return "secret"
    return "long" if "\n" in text or len(text) > LONG_TEXT else "text"


def typed(value: Any) -> str:
    """The value as a person would type it into its field."""
    if isinstance(value, str):
        return value
    flat = json.dumps(value, ensure_ascii=False, default=str)
    return flat if len(flat) <= LONG_TEXT or not isinstance(value, list | dict) else pretty(value)
