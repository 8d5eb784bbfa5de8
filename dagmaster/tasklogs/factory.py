"""Open the configured storage of task logs, and remove logs with their jobs."""

import logging
import os
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

from dagmaster.errors import DagmasterError
from dagmaster.ids import JobId
from dagmaster.settings import Settings
from dagmaster.tasklogs.contract import TaskLogs
from dagmaster.tasklogs.files import FOLDER_MODE, FileLogs
from dagmaster.tasklogs.objects import ObjectLogs

log = logging.getLogger(__name__)

OWN_FOLDER: Final = Path("~/.dagmaster/logs")


def open_task_logs(settings: Settings) -> TaskLogs:
    """Object storage if it is configured, else a folder."""
    return ObjectLogs(settings.log_url) if settings.log_url else FileLogs(logs_dir(settings))


def logs_dir(settings: Settings) -> Path:
    """The configured folder; else next to the embedded server's data; else the system's or the user's."""
    if "log_dir" in settings.model_fields_set:
        return settings.log_dir
    if settings.database_dsn() is None:
        return settings.data_dir / "logs"
    return settings.log_dir if _is_ours(settings.log_dir) else OWN_FOLDER.expanduser()


def _is_ours(folder: Path) -> bool:
    try:
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def remover(settings: Settings) -> Callable[[Collection[JobId]], Awaitable[None]]:
    """Removes the logs of jobs. Jobs whose logs are out of reach are removed anyway."""

    async def remove(job_ids: Collection[JobId]) -> None:
        try:
            logs = open_task_logs(settings)
            await logs.remove_jobs(job_ids)
            await logs.close()
        except DagmasterError as error:
            log.warning("the logs of %d old jobs were not removed: %s", len(job_ids), error)

    return remove
