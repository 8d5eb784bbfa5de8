"""Shared parts of the geospatial handlers: parameters, the files of a job, and the version and options of items."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dagmaster.errors import Invalid
from dagmaster.handlers.contract import HandlerContext, Permanent
from dagmaster.settings import load_settings
from dagmaster.storage import Storage, open_storage

Reference = Annotated[str, Field(min_length=1, description="A file of the storage, such as bronze/rivers.gpkg.")]
Ordinal = Annotated[int, Field(ge=0)]


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")


@contextmanager
def invalid_is_permanent() -> Iterator[None]:
    """Errors in the input are permanent: a retry cannot succeed."""
    try:
        yield
    except Invalid as error:
        raise Permanent(str(error)) from error


def open_zones() -> Storage:
    return open_storage(load_settings())


def on_fraction(ctx: HandlerContext, message: str) -> Callable[[float], None]:
    return lambda fraction: ctx.progress(round(100 * fraction), 100, message)


class CopyDiffers(RuntimeError):
    """The copy does not have the bytes that were written."""


def store_file(storage: Storage, local: Path, target: str, sha256: str) -> str:
    """Copy a local file to the storage, verified by checksum, and return its reference."""
    copied = asyncio.run(storage.copy(str(local), target))
    if copied.sha256 != sha256:
        raise CopyDiffers(f"the copy at {copied.reference} differs from the file that was written")
    return copied.reference


class JobFiles:
    """The files of a job in the zone mount, and their transfer from and to the storage."""

    def __init__(self, ctx: HandlerContext) -> None:
        self._ctx, self.storage = ctx, open_zones()

    def reference(self, *parts: str) -> str:
        return "/".join(("mount", str(self._ctx.job_id), *parts))

    def path(self, reference: str) -> Path:
        return self.storage.local_path(reference)

    def fetch(self, source: str) -> Path:
        """Copy the file to this machine. An interrupted copy is resumed."""
        located = self.storage.locate(source)
        target = self.reference("source", self._ctx.node_id, PurePosixPath(located.reference).name)
        return self.path(asyncio.run(self.storage.copy(source, target)).reference)

    def store(self, local: Path, target: str, sha256: str) -> str:
        return store_file(self.storage, local, target, sha256)

    def remove(self) -> dict[str, int]:
        folder = self.path(self.reference())
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        if folder.is_dir():
            shutil.rmtree(folder)
        return {"removed_files": len(sizes), "removed_bytes": sum(sizes)}


class VersionParams(Params):
    """The asset version of the items, as asset submission passes it."""

    asset_id: str | None = None
    version_ordinal: Ordinal | None = None
    platform_id: str | None = None
    platform_refs: dict[str, Any] = Field(default_factory=dict)

    def platform(self, ctx: HandlerContext) -> dict[str, str | int]:
        values = {
            **{name: str(value) for name, value in self.platform_refs.items()},
            "platform_id": self.platform_id,
            "asset_id": self.asset_id,
            "version_ordinal": self.version_ordinal,
            "request_id": ctx.correlation_id,
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def version_id(self) -> str | None:
        return f"{self.asset_id}-{self.version_ordinal or 0}" if self.asset_id is not None else None

    def default_item_id(self, ctx: HandlerContext, blob_path: str) -> str:
        """Without an asset, named after the file and the job."""
        return self.version_id or f"{PurePosixPath(blob_path).stem}-{ctx.job_id}"


class ItemOptions(Params):
    """Without `item_id`, asset and version identify the item."""

    item_id: str | None = None
    acquired_at: datetime | None = None
    title: str | None = None
