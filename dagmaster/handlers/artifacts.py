"""Artifacts: files that a checkpoint refers to. They must exist when it is saved and when it is used."""

from collections.abc import Iterable, Mapping
from hashlib import file_digest
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from dagmaster.errors import Invalid

Artifact = Mapping[str, Any]


def describe(source: str | PathLike[str] | Mapping[str, Any]) -> Artifact:
    """Describe a file by its path, or check a mapping with `path` and optionally `size_bytes` and `sha256`.

    Raises Invalid for a file that is missing or differs. URLs (`s3://...`) are not checked: only the handler can
    access them.
    """
    artifact = dict(source) if isinstance(source, Mapping) else {"path": fspath(source)}
    path = artifact.get("path")
    if not isinstance(path, str) or not path:
        raise Invalid(f"an artifact must be a path or a mapping with `path`, not {source!r}")
    if "://" in path:
        return artifact
    if (reason := _differs(artifact)) is not None:
        raise Invalid(f"the artifact {path} {reason}; save the checkpoint when the file is complete")
    # Absolute: the next attempt may run in another folder.
    return {**artifact, "path": str(Path(path).absolute()), "size_bytes": Path(path).stat().st_size}


def missing(artifacts: Iterable[Artifact]) -> str | None:
    """Why a checkpoint with these artifacts cannot be resumed from here; None if it can."""
    for artifact in artifacts:
        path = artifact.get("path")
        if isinstance(path, str) and "://" not in path and (reason := _differs(artifact)) is not None:
            return f"its artifact {path} {reason}"
    return None


def _differs(artifact: Artifact) -> str | None:
    path = Path(artifact["path"])
    if not path.exists():
        return "is not there"
    size, digest = artifact.get("size_bytes"), artifact.get("sha256")
    if size is not None and path.is_file() and path.stat().st_size != size:
        return f"has {path.stat().st_size} bytes, not {size}"
    if digest is not None and _sha256(path) != digest:
        return "has different content (sha256)"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
