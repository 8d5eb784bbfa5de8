"""The schema of the first release"""

import re
from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None

PARTS = ("0001_tables.sql", "0001_functions.sql", "0001_assets.sql", "0001_gateway.sql", "0001_data.sql")


def upgrade() -> None:
    # Without parameters the statements are sent verbatim, with their percent signs and colons.
    connection = op.get_bind().execution_options(no_parameters=True)
    for part in PARTS:
        connection.exec_driver_sql(_read(part))


def downgrade() -> None:
    """Drop what the parts created; triggers, indexes and partitions go with their tables."""
    code = "\n".join(map(_read, PARTS))
    op.execute("DROP SCHEMA gateway CASCADE")
    for kind in ("TABLE", "FUNCTION", "TYPE"):
        names = re.findall(rf"^CREATE {kind} (dagapp\.\w+)", code, re.MULTILINE)
        op.execute(f"DROP {kind} {', '.join(names)}")


def _read(part: str) -> str:
    return Path(__file__).with_name(part).read_text(encoding="utf-8")
