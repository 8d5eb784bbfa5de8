"""The exceptions of storage. No message contains the query of a URL, which may be a signature."""

from dagmaster.errors import Invalid, NotFound, Unavailable


class ReferenceRefused(Invalid):
    """The reference does not lead to a file of the configured storage."""


class FileMissing(NotFound):
    """There is no such file."""


class StorageUnavailable(Unavailable):
    """The storage cannot be reached."""
