"""What is to be done to a job, and where it came from."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dagmaster.engine.messages import Cancel, Continue, Expand, Load, Message, Report
from dagmaster.ids import JobId
from dagmaster.store.mailbox import Mail


@dataclass(frozen=True, slots=True)
class Envelope:
    """`mail_id` is None for what never was in the mailbox: timers, follow-ups, reports of a local worker.

    `job` is the job's row, when it came with the mail. `stored_bytes` are to be written, and not in this memory.
    """

    job_id: JobId
    message: Message | None
    mail_id: int | None = None
    job: Mapping[str, Any] | None = None
    stored_bytes: int = 0

    @property
    def unmailed_report(self) -> Report | None:
        """It would be lost with this memory; everything else is found again in the database."""
        return self.message if self.mail_id is None and isinstance(self.message, Report) else None

    @property
    def is_slow(self) -> bool:
        """It may take as long as all else together."""
        return self.stored_bytes > 0 or isinstance(self.message, Expand | Continue)


def from_mail(mail: Iterable[Mail]) -> list[Envelope]:
    return [Envelope(one.job_id, one.message, one.mail_id, one.job, one.stored_bytes) for one in mail]


def by_job(envelopes: Iterable[Envelope]) -> dict[JobId, list[Envelope]]:
    grouped: defaultdict[JobId, list[Envelope]] = defaultdict(list)
    for envelope in envelopes:
        grouped[envelope.job_id].append(envelope)
    return dict(grouped)


def messages(envelopes: Iterable[Envelope], *, is_new: bool, cancel_first: bool = False) -> list[Message]:
    """A job that has just been loaded is resumed first; one that was in memory needs no resuming.

    `cancel_first` for a job that cannot be written as it is: then nothing else need be done for it.
    """
    given: list[Message] = [Load()] if is_new else []
    given += [
        envelope.message
        for envelope in envelopes
        if envelope.message is not None and not isinstance(envelope.message, Load)
    ]
    if cancel_first and any(isinstance(message, Cancel) for message in given):
        return [message for message in given if isinstance(message, Cancel)]
    return given
