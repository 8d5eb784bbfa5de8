"""Lists in pages."""

from typing import Annotated, TypeVar

from fastapi import Query

from dagmaster.schemas.common import Page

T = TypeVar("T")

Offset = Annotated[int, Query(ge=0, le=1_000_000, description="Number of rows to skip.")]


def to_page(rows: list[T], limit: int, offset: int) -> Page[T]:
    """The query returns one row more than `limit` if there are more."""
    return Page[T](items=rows[:limit], limit=limit, offset=offset, has_more=len(rows) > limit)
