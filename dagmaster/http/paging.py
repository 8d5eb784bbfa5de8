"""Lists in pages."""

from typing import Annotated, TypeVar

from fastapi import Query

from dagmaster.schemas.common import Page

T = TypeVar("T")

Offset = Annotated[int, Query(ge=0, le=1_000_000, description="How many to pass over.")]


def cut(rows: list[T], limit: int, offset: int) -> Page[T]:
    """The query asked for one row more than `limit`, to see whether there are more."""
    return Page[T](items=rows[:limit], limit=limit, offset=offset, has_more=len(rows) > limit)
