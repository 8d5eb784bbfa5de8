"""Tables of the data plane: their lifetime and their states."""

from enum import StrEnum


class Scope(StrEnum):
    """Kept until the end of the task, some time after the end of the job, or until it is dropped."""

    TEMP = "temp"
    JOB = "job"
    GLOBAL = "global"


class DataObjectState(StrEnum):
    """The catalogue entry is created before its table and removed after it."""

    CREATING = "creating"
    READY = "ready"
    EXPIRED = "expired"
