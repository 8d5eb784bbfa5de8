"""Types shared by all request and response bodies."""

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

Id = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int) else value),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+$", "examples": ["247845805292758904"]}),
]
Time = Annotated[
    datetime,
    PlainSerializer(lambda at: at.astimezone(UTC).isoformat().replace("+00:00", "Z"), when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
Json = dict[str, Any]
T = TypeVar("T")


class Body(BaseModel):
    """A request body. Unknown fields are rejected, because they are usually typos."""

    model_config = ConfigDict(extra="forbid")


class Reply(BaseModel):
    """A response body. Clients ignore fields that they do not know."""

    model_config = ConfigDict(extra="ignore")


class Page(Reply, Generic[T]):
    """One page of a list. `has_more` says whether another page follows."""

    items: list[T]
    limit: int
    offset: int
    has_more: bool


class Problem(Reply):
    """An error, for programs (`code`) and for people (`message`)."""

    code: str
    message: str
    details: list[Json] = Field(default_factory=list)


class ErrorReply(Reply):
    """The form of every error. `code` and `detail` repeat the values in `error`."""

    error: Problem
    code: str
    detail: str
