"""Process and export files in folders, in place of a real storage."""

import hashlib
import shutil
from pathlib import Path

from pydantic import BaseModel

from dagmaster import Context, Permanent, handler

STORAGE = Path("storage").resolve()


class File(BaseModel):
    """A file, by its path in the storage."""

    path: str


def locate(path: str) -> Path:
    """Raises Permanent for a path outside of the storage."""
    file = (STORAGE / path).resolve()
    if not file.is_relative_to(STORAGE):
        raise Permanent(f"{path} is not in the storage")
    return file


def copy(path: str, target: str) -> Path:
    source, copied = locate(path), locate(target)
    if not source.is_file():
        raise Permanent(f"{path} does not exist")
    copied.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copied)
    return copied


@handler("files.process", params=File)
def process(ctx: Context, params: File) -> dict[str, str]:
    target = f"silver/{Path(params.path).name}"
    content = copy(params.path, target).read_bytes()
    return {"blob_path": target, "content_hash": f"sha256:{hashlib.sha256(content).hexdigest()}"}


@handler("files.export", params=File)
def export(ctx: Context, params: File) -> dict[str, str]:
    target = f"public/{Path(params.path).name}"
    copy(params.path, target)
    return {"external_blob_path": target}
