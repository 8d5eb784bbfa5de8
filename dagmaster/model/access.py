"""Who may do what."""

from enum import StrEnum


class Role(StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    WORKER = "worker"
    PARTNER = "partner"
    VIEWER = "viewer"
    REVIEWER = "reviewer"


# A key of these roles may be for the assets of one platform only.
PLATFORM_ROLES = frozenset({Role.PARTNER, Role.REVIEWER})
