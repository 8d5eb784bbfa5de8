"""Literal parameters are checked as the worker will check them."""

from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dagmaster.authoring.implicit import QueueRules
from dagmaster.authoring.yaml import read_workflow
from dagmaster.handlers.schemas import schema_of
from dagmaster.model.contracts import Contract
from dagmaster.model.params import described, find_faults, find_param_problems
from dagmaster.model.problems import Problem
from dagmaster.model.workflow import Workflow


class Profile(StrEnum):
    LZW = "lzw"
    ZSTD = "zstd"


class Band(BaseModel):
    number: int = Field(ge=1)
    name: str | None = None


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source: str = Field(description="The file to read.")
    factor: float = Field(default=1.0, gt=0, le=10)
    levels: int = 3
    profile: Profile = Profile.LZW
    mode: Literal["fast", "small"] = "fast"
    quiet: bool = False
    day: date | None = None
    bands: list[Band] = Field(default=[], max_length=3)
    sizes: set[int] = set()
    labels: dict[str, int] = {}
    either: int | list[str] = 0


SCHEMA = schema_of(Params)

FITTING: list[dict[str, Any]] = [
    {},
    {"factor": "2.5", "levels": "7", "quiet": "yes", "day": "2026-01-31"},
    {"levels": 4.0, "quiet": 1, "profile": "zstd", "mode": "small", "day": None},
    {"bands": [{"number": 1}, {"number": "2", "name": None}], "labels": {"a": 1}, "sizes": [1, 1, 2]},
    {"either": ["a"], "factor": True},
    {"either": "3"},
    {"day": 0},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"levels": "many"}, "rejects the parameter 'levels': it must be an integer, not a string ('many')"),
    ({"levels": 2.5}, "rejects the parameter 'levels': it must be an integer, not a number (2.5)"),
    ({"factor": 0}, "rejects the parameter 'factor': it must be above 0, not a number (0)"),
    ({"factor": 11}, "rejects the parameter 'factor': it must be at most 10, not a number (11)"),
    ({"factor": [1]}, "rejects the parameter 'factor': it must be a number, not a list of 1"),
    ({"profile": "jpeg"}, "rejects the parameter 'profile': it must be one of 'lzw', 'zstd', not a string ('jpeg')"),
    ({"mode": None}, "rejects the parameter 'mode': it must be one of 'fast', 'small', not null"),
    ({"quiet": "perhaps"}, "rejects the parameter 'quiet': it must be a boolean, not a string ('perhaps')"),
    ({"bands": [{"number": 0}]}, "rejects the parameter 'bands.0.number': it must be at least 1, not a number (0)"),
    ({"bands": [{}]}, "needs the parameter 'bands.0.number'"),
    ({"bands": [{"number": 1}] * 4}, "rejects the parameter 'bands': it must have at most 3 items, not a list of 4"),
    ({"labels": {"a": "b"}}, "rejects the parameter 'labels.a': it must be an integer, not a string ('b')"),
    ({"either": {"a": 1}}, "rejects the parameter 'either': it must be an integer or a list, not an object"),
    ({"levles": 1}, "takes no parameter 'levles'; did you mean 'levels'?"),
]


@pytest.mark.parametrize("params", FITTING, ids=str)
def test_parameters_that_the_worker_accepts_are_not_refused(params: dict[str, Any]) -> None:
    values = {"source": "a.tif", **params}
    Params.model_validate(values)
    assert find_faults(values, SCHEMA) == []


@pytest.mark.parametrize(("params", "message"), REFUSED, ids=str)
def test_parameters_that_the_worker_refuses_are_refused_with_their_place(params: dict[str, Any], message: str) -> None:
    values = {"source": "a.tif", **params}
    with pytest.raises(ValidationError):
        Params.model_validate(values)
    [fault] = find_faults(values, SCHEMA)
    assert fault.message == message
    assert fault.path[0] == next(iter(params))


def test_expressions_are_not_checked() -> None:
    assert find_faults({"source": "{{ inputs.a }}", "levels": "{{ inputs.n }}", "bands": ["{{ item }}"]}, SCHEMA) == []


def test_a_missing_parameter_is_named() -> None:
    assert [fault.message for fault in find_faults({}, SCHEMA)] == ["needs the parameter 'source'"]


def _split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


class Coerced(BaseModel):
    names: Annotated[list[str], BeforeValidator(_split)]
    count: int


class Whole(BaseModel):
    count: int

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return {"count": value["n"]} if "n" in value else value


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    count: int = Field(alias="n")


class Choosing(BaseModel):
    count: int = Field(validation_alias=AliasChoices("count", "n"))


class Around(BaseModel):
    inner: Whole
    other: int = 0


@pytest.mark.parametrize(
    ("model", "params"),
    [
        (Coerced, {"names": "a,b", "count": 1}),
        (Whole, {"n": 3}),
        (Renamed, {"count": 3}),
        (Choosing, {"n": 3}),
        (Around, {"inner": {"n": 3}}),
    ],
)
def test_parameters_with_custom_validators_are_not_checked(model: type[BaseModel], params: dict[str, Any]) -> None:
    model.model_validate(params)
    assert find_faults(params, schema_of(model)) == []


def test_values_next_to_custom_validators_are_checked() -> None:
    assert len(find_faults({"names": "a,b", "count": "x"}, schema_of(Coerced))) == 1
    assert len(find_faults({"inner": {"n": 3}, "other": "x"}, schema_of(Around))) == 1


LOOP = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "properties": {"x": {"$ref": "#/$defs/a"}}}
WIDE = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 9}}, "properties": {"x": {"$ref": "#/$defs/a"}}}


@pytest.mark.parametrize(
    "schema",
    [LOOP, WIDE, {"properties": 3, "required": "x"}, {"$defs": [], "$ref": "#/$defs/x"}, {"type": ["odd", 3]}],
    ids=["loop", "wide", "odd", "dangling", "types"],
)
def test_a_hostile_schema_does_no_harm(schema: dict[str, Any]) -> None:
    assert find_faults({"x": 1}, schema) == []


FLOW = """\
workflow_id: w
inputs:
  file: string
globals:
  region: north
nodes:
  a:
    handler: cog
    params:
      source: "{{ inputs.file }}"
      levels: many
  f:
    type: fan_out
    depends_on: [a]
    source: [1, 2]
    task: {handler: cog, params: {source: b, factor: 99}}
"""


def problems(*, is_uniform: bool, schema: Any = SCHEMA) -> tuple[Workflow | None, tuple[Problem, ...]]:
    contracts = {"cog": Contract("cog", params=schema, is_uniform=is_uniform)}
    return read_workflow(FLOW, file="w.yaml", queues=QueueRules({"cog": "q"}, "q", contracts=contracts))


def test_problems_have_their_place_in_the_file() -> None:
    workflow, mistakes = problems(is_uniform=True)
    assert workflow is None
    assert [str(problem) for problem in mistakes] == [
        "w.yaml:5:11: error: node 'a': handler 'cog' takes no parameter 'region'",
        "w.yaml:5:11: error: node 'f': handler 'cog' takes no parameter 'region'",
        "w.yaml:11:15: error: node 'a': handler 'cog' rejects the parameter 'levels': it must be an integer, "
        "not a string ('many')",
        "w.yaml:16:54: error: node 'f': handler 'cog' rejects the parameter 'factor': it must be at most 10, "
        "not a number (99)",
    ]


def test_problems_are_warnings_if_workers_may_run_other_code() -> None:
    workflow, mistakes = problems(is_uniform=False)
    assert workflow is not None
    assert {problem.severity for problem in mistakes} == {"warning"}
    assert len(list(find_param_problems(workflow, {}))) == 0


def test_a_value_that_looks_like_a_secret_is_redacted() -> None:
    class Login(BaseModel):
        password: int

    [fault] = find_faults({"password": "hunter2"}, schema_of(Login))
    assert "hunter2" not in fault.message


def test_an_input_inherits_the_description_of_its_parameter() -> None:
    workflow, _ = problems(is_uniform=False)
    assert workflow is not None
    contracts = {"cog": Contract("cog", params=SCHEMA)}
    assert described(workflow, contracts).inputs["file"].description == "The file to read."
    assert described(workflow, {}) is workflow
