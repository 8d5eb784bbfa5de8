"""The named SQL statements of `sql/*.sql`."""

import re
from pathlib import Path
from typing import LiteralString

_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


def _load(folder: Path) -> dict[str, LiteralString]:
    found: dict[str, LiteralString] = {}
    for path in sorted(folder.glob("*.sql")):
        _, *parts = _NAME.split(path.read_text(encoding="utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            assert name not in found, f"two statements are named {name}"
            statement = body.replace("%", "%%").strip().removesuffix(";")
            found[name] = _PARAMETER.sub(r"%(\1)s", statement)  # Our own files, never a user's text.
    return found


SQL = _load(Path(__file__).parent / "sql")
