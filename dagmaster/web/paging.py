"""Pages of lists, with the limit of the API."""

from typing import Annotated

from fastapi import Query

from dagmaster.http.paging import Offset, to_page

__all__ = ["Limit", "Offset", "to_page"]

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of rows.")]
