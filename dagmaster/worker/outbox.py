"""Reports that were not accepted yet."""

from collections.abc import Iterable, Sequence

from dagmaster.ids import TaskId
from dagmaster.queues.contract import TaskReport
from dagmaster.worker.spool import Spool

# A larger transaction would delay later reports, and cost as much memory at each retry.
MAX_BYTES = 16 * 1024 * 1024


class Outbox:
    """Reports in order of arrival. With a spool they survive the process."""

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool
        self._reports: list[TaskReport] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._reports)

    @property
    def is_full(self) -> bool:
        """Whether more tasks would only add to the backlog."""
        return self._bytes >= MAX_BYTES

    def first(self, max_bytes: int = MAX_BYTES) -> list[TaskReport]:
        """As many reports as fit into one transaction, at least one if there is any. Small ones overtake large ones."""
        selected: list[TaskReport] = []
        for report in self._reports:
            if (size := _size(report)) <= max_bytes:
                selected.append(report)
                max_bytes -= size
        return selected or self._reports[:1]

    def task_ids(self) -> Iterable[TaskId]:
        return (report.task_id for report in self._reports)

    def recover(self) -> None:
        """Add the reports that earlier processes left in the spool."""
        if self._spool is not None:
            for report in self._spool.load():
                self._keep(report)

    def add(self, report: TaskReport) -> None:
        if self._spool is not None:
            self._spool.add(report)
        self._keep(report)

    def remove(self, reports: Sequence[TaskReport]) -> None:
        """Remove accepted reports."""
        taken = {id(report) for report in reports}
        self._reports = [report for report in self._reports if id(report) not in taken]
        self._bytes -= sum(map(_size, reports))
        if self._spool is not None and reports:
            self._spool.remove([report.task_id for report in reports])

    def _keep(self, report: TaskReport) -> None:
        self._reports.append(report)
        self._bytes += _size(report)


def _size(report: TaskReport) -> int:
    return len(report.output or b"")
