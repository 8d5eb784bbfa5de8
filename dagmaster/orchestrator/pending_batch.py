"""A batch on its way to the database, with the tasks that the local worker claims in the same transaction."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.decide import claim_here
from dagmaster.ids import JobId
from dagmaster.orchestrator import tracing
from dagmaster.orchestrator.envelopes import Envelope
from dagmaster.orchestrator.handoff import queues_called, task_of
from dagmaster.queues.contract import LocalWorker, TaskMessage
from dagmaster.store.batch import Batch, commit
from dagmaster.store.connect import Connection
from dagmaster.store.notifications import Notifier


@dataclass(slots=True)
class PendingBatch:
    """`envelopes` are those of the whole cycle; `local` are the tasks that the local worker starts after the commit."""

    batch: Batch
    envelopes: dict[JobId, list[Envelope]]
    local: list[TaskMessage] = field(default_factory=list)
    queues: set[str] = field(default_factory=set)
    bytes: int = 0

    @property
    def change_sets(self) -> list[ChangeSet]:
        return [changes for changes, _ in self.batch.change_sets]

    @property
    def job_ids(self) -> list[JobId]:
        return [changes.job.job_id for changes in self.change_sets]

    def add(self, changes: ChangeSet, epoch: int, envelopes: Sequence[Envelope]) -> None:
        self.batch.change_sets.append((changes, epoch))
        for envelope in envelopes:
            if envelope.mail_id is not None:
                self.batch.close_mail(envelope.mail_id, envelope.payload, is_new_job=envelope.job is not None)
        self.bytes += changes.bytes + sum(envelope.stored_bytes for envelope in envelopes)


async def commit_pending(
    conn: Connection, pending: PendingBatch, local: LocalWorker | None, notifier: Notifier
) -> None:
    """Write the batch in one transaction; the slots reserved for it are released if that fails."""
    spans = tracing.begin_dispatches(pending.change_sets)
    if local is not None:
        assign_local(pending, local)
    for changes in pending.change_sets:
        pending.queues |= queues_called(changes, pending.batch.local)
    pending.batch.calls_workers = bool(pending.queues) and notifier.can_piggyback()
    try:
        await commit(conn, pending.batch)
    except BaseException as error:
        tracing.end_dispatches(spans, error)
        if local is not None:
            local.release(pending.local)
        raise
    tracing.end_dispatches(spans)


def assign_local(pending: PendingBatch, local: LocalWorker) -> None:
    """Claim tasks for free slots of this process in the transaction that dispatches them."""
    tasks = [(changes, dispatch) for changes in pending.change_sets for dispatch in changes.dispatches.values()]
    tasks.sort(key=lambda task: (-task[0].job.priority, task[0].job.started_at))
    for changes, dispatch in tasks:
        # Later attempts go through the queue: a claim there brings their checkpoint, which is not known here.
        if changes.job.is_paused or dispatch.node.params is None or dispatch.attempt > 0:
            continue
        if not local.reserve(dispatch.node.task_queue, dispatch.node.task.handler):
            continue
        pending.local.append(task_of(changes, dispatch))
        pending.batch.local.add(dispatch.task_id)
        claim_here(changes, dispatch, local.worker_id)
