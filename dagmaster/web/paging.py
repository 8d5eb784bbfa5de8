"""Pages of lists, with the limit of the API."""

from typing import Annotated

from fastapi import Query

from dagmaster.http.paging import Offset, cut

__all__ = ["Limit", "Offset", "cut"]

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of rows.")]
