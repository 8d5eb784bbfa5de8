"""Messages to jobs, with their origin."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dagmaster.engine.messages import Cancel, Continue, Expand, Load, Message, Report
from dagmaster.ids import JobId
from dagmaster.store.mailbox import Mail


class Envelope(NamedTuple):
    """`mail_id` is None for messages that were never mail: timers, follow-ups, reports of a local worker.

    `job` is the job's row, if it came with the mail. `stored_bytes` is the size of values that are not in memory.
    `payload` is that of the notification that brought the mail.
    """

    job_id: JobId
    message: Message | None
    mail_id: int | None = None
    job: Mapping[str, Any] | None = None
    stored_bytes: int = 0
    payload: str | None = None

    @property
    def unmailed_report(self) -> Report | None:
        """A report that would be lost with this process; all other messages are in the database."""
        return self.message if self.mail_id is None and isinstance(self.message, Report) else None

    @property
    def is_slow(self) -> bool:
        """Whether it may take as long as all other messages together."""
        return self.stored_bytes > 0 or isinstance(self.message, (Expand, Continue))


def from_mail(mail: Iterable[Mail]) -> list[Envelope]:
    return [Envelope(row.job_id, row.message, row.mail_id, row.job, row.stored_bytes, row.payload) for row in mail]


def by_job(envelopes: Iterable[Envelope]) -> dict[JobId, list[Envelope]]:
    grouped: defaultdict[JobId, list[Envelope]] = defaultdict(list)
    for envelope in envelopes:
        grouped[envelope.job_id].append(envelope)
    return dict(grouped)


def messages(envelopes: Iterable[Envelope], *, is_new: bool, cancel_first: bool = False) -> list[Message]:
    """The messages for one job; a job that was just loaded is resumed first.

    `cancel_first`: if the job is being cancelled, drop all other messages. It may be too large to be written with them.
    """
    arrived: list[Message] = [Load()] if is_new else []
    arrived += [
        envelope.message
        for envelope in envelopes
        if envelope.message is not None and not isinstance(envelope.message, Load)
    ]
    if cancel_first and any(isinstance(message, Cancel) for message in arrived):
        return [message for message in arrived if isinstance(message, Cancel)]
    return arrived
