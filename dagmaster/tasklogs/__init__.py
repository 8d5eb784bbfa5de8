"""Task logs: one for each attempt, in files or in object storage."""

from dagmaster.tasklogs.contract import LogUnavailable, TaskLogs
from dagmaster.tasklogs.factory import logs_dir, open_task_logs

__all__ = ["LogUnavailable", "TaskLogs", "logs_dir", "open_task_logs"]
