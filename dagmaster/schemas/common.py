"""What all bodies have in common."""

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
    """What a caller sends: a key that we do not know is a mistake of theirs, and they are told."""

    model_config = ConfigDict(extra="forbid")


class Reply(BaseModel):
    """What we answer; a client of another version ignores what it does not know."""

    model_config = ConfigDict(extra="ignore")


class Page(Reply, Generic[T]):
    """Part of a list. `has_more` tells whether there is something behind it."""

    items: list[T]
    limit: int
    offset: int
    has_more: bool


class Problem(Reply):
    """What went wrong, for a program (`code`) and for a person (`message`)."""

    code: str
    message: str
    details: list[Json] = Field(default_factory=list)


class ErrorReply(Reply):
    """Every error has this form. `code` and `detail` repeat what `error` says, for clients that look there."""

    error: Problem
    code: str
    detail: str
