"""The roles of API keys."""

from enum import StrEnum


class Role(StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    WORKER = "worker"
    PARTNER = "partner"
    VIEWER = "viewer"
    REVIEWER = "reviewer"


# A key with one of these roles may be limited to the assets of one platform.
PLATFORM_ROLES = frozenset({Role.PARTNER, Role.REVIEWER})
