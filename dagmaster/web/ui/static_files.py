"""Static files at URLs that change with their content, so that browsers can cache them forever.

The fingerprint is a folder in the URL, so that relative imports of modules contain it too.
"""

import mimetypes
import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Final

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PATH: Final = "/ui/static"
FOLDER: Final = Path(str(files("dagmaster.web") / "static"))
FOR_GOOD: Final = "public, max-age=31536000, immutable"
ASK_AGAIN: Final = "no-cache"
# Browsers require this type for modules; the machine's own table may differ.
mimetypes.add_type("text/javascript", ".mjs")
VERSIONED: Final = re.compile(r"v-([0-9a-f]{16})/(.+)")


@cache
def fingerprint(folder: Path = FOLDER) -> str:
    """One fingerprint for all files, because each may refer to any other."""
    digest = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def static(path: str) -> str:
    """The URL of a file, for templates."""
    return f"{PATH}/v-{fingerprint()}/{path}"


class PageFiles(StaticFiles):
    """Accepts any fingerprint: during an upgrade, pages of another version may request files here."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    async def get_response(self, path: str, scope: Scope) -> Response:
        versioned = VERSIONED.fullmatch(path)
        answer = await super().get_response(versioned[2] if versioned else path, scope)
        is_ours = versioned is not None and versioned[1] == fingerprint()
        answer.headers["Cache-Control"] = FOR_GOOD if is_ours else ASK_AGAIN
        return answer
