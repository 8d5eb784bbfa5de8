"""Lists in pages, as long as the gateway allows."""

from typing import Annotated

from fastapi import Query

Limit = Annotated[int, Query(ge=1, le=500, description="How many at most.")]
