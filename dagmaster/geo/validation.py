"""What the validations of rasters and of vector layers share."""

from collections.abc import Sequence
from enum import StrEnum


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    ACCEPTED_WITH_WARNINGS = "accepted_with_warnings"
    REJECTED = "rejected"


class CrsSource(StrEnum):
    """The source of the CRS: the file alone, both in agreement, or only the caller."""

    FILE = "file"
    CONFIRMED = "confirmed"
    ASSIGNED = "assigned"


def outcome_of(problems: Sequence[str], warnings: Sequence[str]) -> Outcome:
    if problems:
        return Outcome.REJECTED
    return Outcome.ACCEPTED_WITH_WARNINGS if warnings else Outcome.ACCEPTED
