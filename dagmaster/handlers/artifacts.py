"""Files that a phase leaves for the next ones: they must be there when it is saved, and when it is taken up again."""

import hashlib
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from dagmaster.errors import Invalid

Artifact = Mapping[str, Any]

CHUNK_BYTES = 1024 * 1024


def described(given: str | PathLike[str] | Mapping[str, Any]) -> Artifact:
    """A file by its path, or a mapping with `path` and, to be compared, `size_bytes` and `sha256`.

    Raises Invalid for a file that is not there or is another. What has a scheme (`s3://...`) is taken as it is said:
    only the handler knows how to look at it.
    """
    wanted = dict(given) if isinstance(given, Mapping) else {"path": fspath(given)}
    path = wanted.get("path")
    if not isinstance(path, str) or not path:
        raise Invalid(f"an artifact must be a path or a mapping with `path`, not {given!r}")
    if "://" in path:
        return wanted
    if (reason := _differs(wanted)) is not None:
        raise Invalid(f"the artifact {path} {reason}; save the checkpoint when the file is complete")
    # As an absolute path: the next attempt may run in another folder.
    return {**wanted, "path": str(Path(path).absolute()), "size_bytes": Path(path).stat().st_size}


def missing(artifacts: Iterable[Artifact]) -> str | None:
    """Why a checkpoint with these cannot be taken up here; None when it can."""
    for one in artifacts:
        path = one.get("path")
        if isinstance(path, str) and "://" not in path and (reason := _differs(one)) is not None:
            return f"its artifact {path} {reason}"
    return None


def _differs(wanted: Artifact) -> str | None:
    path = Path(wanted["path"])
    if not path.exists():
        return "is not there"
    size, digest = wanted.get("size_bytes"), wanted.get("sha256")
    if size is not None and path.is_file() and path.stat().st_size != size:
        return f"has {path.stat().st_size} bytes, not {size}"
    if digest is not None and _sha256(path) != digest:
        return "has different content (sha256)"
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
