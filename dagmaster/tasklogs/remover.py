"""Remove task logs together with their jobs."""

import logging
from collections.abc import Awaitable, Callable, Collection

from dagmaster.errors import DagmasterError
from dagmaster.ids import JobId
from dagmaster.settings import Settings
from dagmaster.tasklogs.factory import open_task_logs

log = logging.getLogger(__name__)


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
