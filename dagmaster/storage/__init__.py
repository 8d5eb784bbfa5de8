"""Files in zones: local folders, containers of Azure Blob Storage, and buckets of S3.

Callers name files by reference. A reference that leads out of the configured zones and folders is rejected.
"""

from dagmaster.storage.errors import FileMissing, ReferenceRefused, StorageUnavailable
from dagmaster.storage.references import LocalFile, RemoteObject, WebFile, Zones
from dagmaster.storage.source import Listed
from dagmaster.storage.storage import Copied, Storage, open_storage

__all__ = [
    "Copied",
    "FileMissing",
    "Listed",
    "LocalFile",
    "ReferenceRefused",
    "RemoteObject",
    "Storage",
    "StorageUnavailable",
    "WebFile",
    "Zones",
    "open_storage",
]
