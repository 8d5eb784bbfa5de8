"""A request to the server as a value, and how its response is read. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from dagmaster.client.errors import ClientError
from dagmaster.errors import Invalid

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. `is_safe` if it may be sent twice."""

    method: str
    path: str
    read: Callable[[bytes], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    body: BaseModel | None = None
    is_safe: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes | None:
        return self.body.model_dump_json(exclude_none=True).encode() if self.body is not None else None


def quoted(part: int | str) -> str:
    return quote(str(part), safe="")


def job_path(job_id: int | str, node_id: str | None = None) -> str:
    return f"{PREFIX}/jobs/{quoted(job_id)}" + (f"/nodes/{quoted(node_id)}" if node_id is not None else "")


def schedule_path(schedule_id: str) -> str:
    return f"{PREFIX}/schedules/{quoted(schedule_id)}"


def get(kind: type[Model], path: str, **params: Any) -> Call[Model]:
    return Call("GET", path, reader(kind), chosen(**params), is_safe=True)


def chosen(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def body_of(kind: type[Model], /, **fields: Any) -> Model:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise Invalid("; ".join(f"{_place(fault['loc'])}: {fault['msg']}" for fault in error.errors())) from error


def reader(kind: type[Model]) -> Callable[[bytes], Model]:
    return lambda data: read(kind, data)


def read(kind: type[Model], data: bytes) -> Model:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        problem = f"{_place(first['loc'])}: {first['msg']}"
        raise ClientError(f"the response is not a {kind.__name__}: {problem}; is this a dagmaster server?") from error


def _place(loc: Sequence[int | str]) -> str:
    return ".".join(map(str, loc)) or "the whole"
