"""Who may do what."""

from enum import StrEnum


class Role(StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    WORKER = "worker"
    PARTNER = "partner"
    VIEWER = "viewer"
