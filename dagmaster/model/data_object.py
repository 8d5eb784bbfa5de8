"""Tables of the data plane: how long they are kept, and what may happen to them."""

from enum import StrEnum


class Scope(StrEnum):
    """Kept to the end of the task, some time after the end of the job, or until it is dropped."""

    TEMP = "temp"
    JOB = "job"
    GLOBAL = "global"


class DataObjectState(StrEnum):
    """An entry is made before its table, and removed after it."""

    CREATING = "creating"
    READY = "ready"
    EXPIRED = "expired"
