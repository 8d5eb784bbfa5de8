"""The storage of rasters, and the work folder of a task."""

import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from uuid import uuid4

from dagmaster.handlers.contract import HandlerContext
from dagmaster.settings import load_settings
from dagmaster.storage import Storage, open_storage


def open_zones() -> Storage:
    return open_storage(load_settings())


def mount_reference(ctx: HandlerContext, reference: str) -> str:
    """Where this job copies a file to. Files of the same name from different folders do not collide."""
    digest = sha256(reference.encode()).hexdigest()[:16]
    return f"mount/{ctx.job_id}/{digest}/{PurePosixPath(reference).name}"


def work_folder(storage: Storage, ctx: HandlerContext) -> Path:
    """A folder for this attempt in the zone mount, with the files of an earlier attempt at the node.

    It is taken over by renaming: an attempt that is wrongly believed dead can no longer write to it.
    """
    place = storage.local_path(f"mount/{ctx.job_id}/{ctx.node_id}.work")
    place.mkdir(parents=True, exist_ok=True)
    own = place / uuid4().hex
    for left in sorted(place.iterdir()):
        try:
            return left.rename(own)
        except FileNotFoundError:
            continue  # Another attempt has taken it over.
    own.mkdir()
    return own


def remove_work_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    with suppress(OSError):  # Another attempt may be using it.
        folder.parent.rmdir()
