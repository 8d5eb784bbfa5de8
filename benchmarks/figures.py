"""Figures, and what is made of them: medians, spreads, ratios to the floor, verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

Spread = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured again and again."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], *, scale: float = 1.0) -> "Sample":
        return cls(tuple(value * scale for value in values))

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> Spread | None:
        """The middle half: a noisy machine's worst moment says nothing."""
        if len(self.values) < 2:
            return None
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return low, high

    def percentile(self, percent: int) -> float:
        return quantiles(self.values, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True, slots=True)
class Bar:
    """What is promised: at most, or at least, `limit`; of the floor where the figure has one."""

    limit: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """`floor` is in the figure's own unit; without one the bar is for the value itself."""

    workload: str
    label: str
    value: float
    unit: str
    spread: Spread | None = None
    floor: float | None = None
    bar: Bar | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        judged = self.value if self.ratio is None else self.ratio
        return "met" if self.bar.holds(judged) else "MISSED"
