"""The health of the installation, and the folder of task logs."""

from pathlib import Path
from typing import Any

from dagmaster.python.context import session
from dagmaster.settings import load_settings
from dagmaster.store import health


async def health_check() -> dict[str, Any]:
    """The health: `status`, `database`, `active_workers`, `active_orchestrators` and `stale_tasks`."""
    settings = load_settings()
    async with session() as conn:
        return await health.health_check(
            conn,
            worker_lost_seconds=settings.worker_lost_after_seconds,
            orphan_seconds=settings.orphan_threshold_seconds,
            stuck_seconds=settings.stuck_after_seconds,
        )


def get_logs_dir() -> Path:
    """The folder of task logs; created if it is missing."""
    folder = load_settings().log_dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder
