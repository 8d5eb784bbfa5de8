"""The filters of the lists of jobs and nodes, from the URL."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from fastapi import Depends, Query

PERIODS: Final = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
PERIOD_NAMES: Final = {"1h": "1 h", "24h": "24 h", "7d": "7 d", "30d": "30 d"}
ENDED: Final = "ended-"


@dataclass(frozen=True, slots=True)
class ListQuery:
    """`period` is the time of creation or, with the prefix `ended-`, of the end."""

    status: Sequence[str]
    workflow: str
    text: str
    period: str

    def statuses(self, known: Collection[str]) -> list[str]:
        return [status for status in self.status if status in known]

    @property
    def created_since(self) -> datetime | None:
        return since(self.period)

    @property
    def ended_since(self) -> datetime | None:
        return since(self.period.removeprefix(ENDED)) if self.period.startswith(ENDED) else None


def since(period: str) -> datetime | None:
    return datetime.now(UTC) - PERIODS[period] if period in PERIODS else None


async def list_query(
    status: Annotated[list[str] | None, Query()] = None,
    workflow: str = "",
    text: Annotated[str, Query(max_length=200)] = "",
    period: str = "",
) -> ListQuery:
    return ListQuery(tuple(status or ()), workflow.strip(), text.strip(), period)


FromAddress = Annotated[ListQuery, Depends(list_query)]
