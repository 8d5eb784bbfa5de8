"""Pages of lists, with the limit of the gateway."""

from typing import Annotated

from fastapi import Query

Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of rows.")]
