"""Objects of Azure Blob Storage and S3, through obstore."""

import io
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any, Final

from dagmaster.errors import Misconfigured
from dagmaster.model.redact import redact_text
from dagmaster.storage import azure
from dagmaster.storage.errors import FileMissing, StorageUnavailable
from dagmaster.storage.references import RemoteObject
from dagmaster.storage.source import CHUNK_BYTES, Listed, Source

RETRY_SECONDS: Final = 30
RETRIES: Final = 3
PART_BYTES: Final = 8 * 1024 * 1024
PARTS_AT_ONCE: Final = 4
BUFFER_BYTES: Final = 64 * 1024


@cache
def _library() -> tuple[Any, Any, Any]:
    try:
        return import_module("obstore"), import_module("obstore.store"), import_module("obstore.exceptions")
    except ImportError as error:
        raise Misconfigured(
            "storage zones in Azure Blob Storage or S3 need obstore: install it with `pip install 'dagmaster[objects]'`"
        ) from error


@cache
def _open(zone_url: str) -> Any:
    """The store of a zone. Credentials come from the environment: AWS_..., AZURE_STORAGE_..., or an identity."""
    _, stores, exceptions = _library()
    patience = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    try:
        store = stores.from_url(zone_url, retry_config=patience)
        if not isinstance(store, stores.AzureStore) or not azure.uses_identity(os.environ):
            return store
        account = store.config.get("account_name") or os.environ["AZURE_STORAGE_ACCOUNT_NAME"]
        access = azure.open_access(account, store.config["container_name"])
        return stores.from_url(zone_url, retry_config=patience, credential_provider=access)
    except (exceptions.BaseError, ValueError, OSError) as error:
        raise Misconfigured(f"the storage zone {zone_url} cannot be used: {_first_line(error)}") from error


async def head(location: RemoteObject) -> Source:
    obstore, _, _ = _library()
    store = _open(location.zone_url)
    with _translated(location):
        meta = await obstore.head_async(store, location.key)

    async def read(offset: int, end: int | None = None) -> AsyncIterator[bytes]:
        if offset >= meta["size"]:
            return
        with _translated(location):
            # `if_match`: a file that is replaced during the read must not yield a mixture of both.
            interval = {"offset": offset} if end is None else (offset, end)
            options = {"range": interval, "if_match": meta["e_tag"]}
            answer = await obstore.get_async(store, location.key, options=options)
            async for chunk in answer.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    return Source(meta["size"], f"{meta['e_tag']}", read)


async def put(location: RemoteObject, chunks: AsyncIterator[bytes]) -> None:
    """The object appears only when it is complete."""
    obstore, _, _ = _library()
    with _translated(location):
        await obstore.put_async(
            _open(location.zone_url), location.key, chunks, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )


async def walk(folder: RemoteObject) -> AsyncIterator[Listed]:
    """The objects below a prefix, in the order of the store."""
    obstore, _, _ = _library()
    with _translated(folder):
        async for page in obstore.list(_open(folder.zone_url), prefix=f"{folder.key}/" if folder.key else None):
            for meta in page:
                below = meta["path"].removeprefix(folder.key).lstrip("/")
                yield Listed(f"{folder.reference}/{below}", meta["size"])


async def remove(location: RemoteObject) -> bool:
    """False if there is no such object."""
    obstore, _, _ = _library()
    try:
        with _translated(location):
            await obstore.head_async(_open(location.zone_url), location.key)
            await obstore.delete_async(_open(location.zone_url), location.key)
    except FileMissing:
        return False
    return True


class _ObjectFile(io.RawIOBase):
    """Each read is a range request."""

    def __init__(self, location: RemoteObject) -> None:
        self._location, self._store = location, _open(location.zone_url)
        self._offset = 0
        with _translated(location):
            self._meta = _library()[0].head(self._store, location.key)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._meta["size"]}[whence]
        self._offset = start + offset
        return self._offset

    def readinto(self, buffer: Any) -> int:
        end: int = min(self._offset + len(buffer), self._meta["size"])
        size = max(0, end - self._offset)
        if size:
            options = {"range": (self._offset, end), "if_match": self._meta["e_tag"]}
            with _translated(self._location):
                content = _library()[0].get(self._store, self._location.key, options=options).bytes()
            buffer[:size] = bytes(content)
        self._offset += size
        return size


def open_file(location: RemoteObject) -> io.BufferedReader:
    """For libraries that read files. It blocks: use it in a thread."""
    return io.BufferedReader(_ObjectFile(location), BUFFER_BYTES)


@contextmanager
def _translated(location: RemoteObject) -> Iterator[None]:
    _, _, exceptions = _library()
    try:
        yield
    except (FileNotFoundError, exceptions.NotFoundError) as error:
        raise FileMissing(f"there is no file {location.reference}") from error
    except (exceptions.BaseError, OSError) as error:
        raise StorageUnavailable(f"{location.reference} cannot be reached: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """The rest of the message is for debugging the library."""
    return redact_text(str(error).partition("\n")[0])
