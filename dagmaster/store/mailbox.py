"""The mail for an owner's jobs: read it, and send it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dagmaster.engine.messages import Message
from dagmaster.ids import JobId
from dagmaster.store.connect import Connection, encode_rows
from dagmaster.store.mail_codec import SLICE, MailRow, decode
from dagmaster.store.statements import fetch, run

MAX_SLICES = 8
# Larger values stay in the mailbox until the batch copies them.
INLINE_BYTES = 64 * 1024
MAX_BYTES = 16 * 1024 * 1024


class Mail(NamedTuple):
    """`job` is the row of a job that is new to its owner. `stored_bytes` is the size of a value that was not read.

    `message` is None for a kind that this version does not know; it is closed all the same. `payload` is that of the
    notification that brought the mail.
    """

    mail_id: int
    job_id: JobId
    message: Message | None
    job: Mapping[str, Any] | None = None
    stored_bytes: int = 0
    payload: str | None = None


class Arrived(list[Mail]):
    """`is_all`: the mailbox held nothing else. `is_cut`: the size limit was reached."""

    is_all = True
    is_cut = False


async def read_mail(
    conn: Connection,
    owner_id: str,
    limit: int,
    max_slices: int = MAX_SLICES,
    *,
    inline_bytes: int = INLINE_BYTES,
    max_bytes: int = MAX_BYTES,
    window: int | None = None,
) -> Arrived:
    """Needs a connection that keeps JSON as bytes. The number of slices is limited, so that other jobs do not wait.

    With a `window`, more than `max_bytes` is expected, and jobs with little mail are searched among so many rows.
    """
    values = {"owner_id": owner_id, "limit": limit, "inline_bytes": inline_bytes, "max_bytes": max_bytes}
    rows = await fetch(conn, "read_mail", values) if window is None else []
    is_cut = False
    if window is not None or any(not row["fits"] for row in rows[:1]):
        rows = await fetch(conn, "weigh_mail", {**values, "window": window or limit})
        is_cut = len(rows) < limit and any(row["arrived"] > len(rows) for row in rows[:1])
    is_all = len(rows) < limit and not is_cut
    slices = [index for index, row in enumerate(rows) if row["kind"] == SLICE]
    if len(slices) > max_slices:
        rows, is_all = rows[: slices[max_slices]], False
    if slices:
        await _fill_in(conn, rows)
    arrived = Arrived(Mail(row["mail_id"], row["job_id"], decode(row), _job(row), _stored_bytes(row)) for row in rows)
    arrived.is_all, arrived.is_cut = is_all, is_cut
    return arrived


async def jobs_with_mail(conn: Connection, job_ids: Collection[JobId], apart_from: Iterable[Mail]) -> set[JobId]:
    """The jobs with other mail than this."""
    mail_ids = [mail.mail_id for mail in apart_from]
    rows = await fetch(conn, "jobs_with_mail", {"job_ids": list(job_ids), "mail_ids": mail_ids})
    return {row["job_id"] for row in rows}


async def _fill_in(conn: Connection, rows: Sequence[dict[str, Any]]) -> None:
    added = {row["mail_id"]: row for row in rows if row["kind"] == SLICE}
    for row in await fetch(conn, "read_slices", {"mail_ids": list(added)}):
        added[row["mail_id"]]["output"] = row["output"]


async def close_late_mail(conn: Connection, limit: int = 1000) -> int:
    [row] = await fetch(conn, "close_late_mail", {"limit": limit})
    return int(row["closed"])


async def add_mail(conn: Connection, rows: Sequence[MailRow]) -> None:
    await run(conn, "add_mail", {"mail": encode_rows(rows)})


def _job(row: dict[str, Any]) -> Mapping[str, Any] | None:
    """In the form of `load_jobs`."""
    return {**row, "created_at": row["job_created_at"]} if row["is_new"] else None


def _stored_bytes(row: dict[str, Any]) -> int:
    return row["output_bytes"] or 0 if row["output"] is None else 0
