"""Reports that nobody has taken yet."""

from collections import deque
from collections.abc import Iterable, Sequence

from dagmaster.queues.contract import TaskReport
from dagmaster.worker.spool import Spool

# A transaction of more would hold up the reports that come after it, and cost as much memory again and again.
MAX_BYTES = 16 * 1024 * 1024


class Outbox:
    """In the order of their coming. With a spool they outlive the process."""

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool
        self._reports: deque[TaskReport] = deque()

    def __bool__(self) -> bool:
        return bool(self._reports)

    def first(self, max_bytes: int = MAX_BYTES) -> list[TaskReport]:
        """As many as may go at once: at least one, if there is any."""
        chosen: list[TaskReport] = []
        for report in self._reports:
            max_bytes -= len(report.output or b"")
            if chosen and max_bytes < 0:
                break
            chosen.append(report)
        return chosen

    def task_ids(self) -> Iterable[str]:
        return (report.task_id for report in self._reports)

    def recover(self) -> None:
        """What former processes left."""
        if self._spool is not None:
            self._reports.extend(self._spool.load())

    def add(self, report: TaskReport) -> None:
        if self._spool is not None:
            self._spool.add(report)
        self._reports.append(report)

    def remove_first(self, reports: Sequence[TaskReport]) -> None:
        """They were taken."""
        for _ in reports:
            self._reports.popleft()
        if self._spool is not None and reports:
            self._spool.remove([report.task_id for report in reports])
