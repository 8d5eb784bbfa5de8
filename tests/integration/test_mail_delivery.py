"""Notifications carry small mail: its owner acts on it at once if the mailbox still contains it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from fleet import graph, rows, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.decide import decide
from dagmaster.ids import JobId
from dagmaster.orchestrator import inbox, orchestrator
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.store import instances, mailbox, submission, tasks
from dagmaster.store.connect import Connection, connect_hot, keep_json
from dagmaster.store.hot_connection import HotConnection
from dagmaster.store.instances import this_instance
from dagmaster.store.mail_codec import MailRow
from dagmaster.store.mail_payload import read_payload
from dagmaster.store.mailbox import add_mail
from dagmaster.store.notifications import MAIL, Notifier

GRAPH = graph({"work": task("echo", "END", params={"x": "{{ inputs.x }}"})}, start="work", inputs={"x": "string"})
# The positions within payloads.
OUTPUT = 7
HASH, STATUS, INPUTS = 5, 6, 11


@dataclass
class Desk:
    """An orchestrator whose cycles and notifications the test controls, and a worker without a loop."""

    dsn: str
    conn: HotConnection
    sender: Connection
    instance: Orchestrator
    payloads: list[str] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    worker = this_instance()

    async def payload(self) -> str:
        """The payload of the last notification."""
        while not self.payloads:
            await self.conn.fetch_prepared(b"SELECT 1 AS number", [])
        return self.payloads.pop()

    async def cycle(self, *payloads: str) -> None:
        for payload in payloads:
            self.instance.hear(MAIL, payload)
        while await self.instance.cycle(self.conn):
            pass

    async def submit(self, **inputs: Any) -> JobId:
        new = submission.NewJob(GRAPH, {"x": 1, **inputs})
        owner_id = self.instance.me.instance_id
        return (await submission.submit(self.sender, new, threshold_seconds=60, owner_id=owner_id)).job_id

    async def begin(self, **inputs: Any) -> JobId:
        """Start a job and claim its task."""
        job_id = await self.submit(**inputs)
        await self.cycle(await self.payload())
        assert len(await tasks.claim(self.sender, self.worker.worker_id, 5)) == 1
        return job_id

    async def report(self, job_id: JobId, output: bytes = b'{"y": 1.0}') -> None:
        row: MailRow = {
            "job_id": job_id,
            "kind": "completed",
            "node_id": "work",
            "task_id": f"{job_id}_work_0",
            "output": orjson.Fragment(output),
        }
        await tasks.report(self.sender, self.worker.worker_id, [row], notifies=True)

    async def job(self, job_id: JobId) -> dict[str, Any]:
        [row] = await rows(
            self.dsn,
            """SELECT j.status, n.input_params AS params, n.output, j.owner_id,
                   (SELECT count(*) FROM dagapp.dag_mailbox m WHERE m.job_id = j.job_id) AS mails,
                   (SELECT count(*) FROM dagapp.dag_job_events e WHERE e.job_id = j.job_id) AS events
               FROM dagapp.dag_jobs j JOIN dagapp.dag_node_states n ON n.job_id = j.job_id AND n.node_id = 'work'
               WHERE j.job_id = %s""",
            job_id,
        )
        return row


@asynccontextmanager
async def opened_desk(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    async with await connect_hot(dsn, application="test") as conn, await connect_hot(dsn, application="test") as sender:
        for each in (conn, sender):
            keep_json(each)
        desk = Desk(dsn, conn, sender, Orchestrator(Rules(), Notifier(dsn), poll_interval_seconds=3600))

        async def counted(*arguments: Any, **options: Any) -> Any:
            mail = await mailbox.read_mail(*arguments, **options)
            desk.reads.append(len(mail))
            return mail

        monkeypatch.setattr(inbox, "read_mail", counted)
        await instances.register_orchestrator(conn, desk.instance.me)
        await instances.register_worker(conn, desk.worker, ["q"], 4)
        await conn.listen(MAIL, lambda _, payload: desk.payloads.append(payload))
        desk.instance.definitions.add(GRAPH)
        await desk.cycle()
        desk.reads.clear()
        yield desk


@pytest.fixture
async def desk(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    async with opened_desk(dsn, monkeypatch) as opened:
        yield opened


async def test_a_job_runs_from_notifications_alone(desk: Desk) -> None:
    job_id = await desk.begin()
    assert (await desk.job(job_id))["params"] == {"x": 1}
    await desk.report(job_id)
    await desk.cycle(await desk.payload())
    job = await desk.job(job_id)
    assert (job["status"], job["output"], job["mails"]) == ("completed", {"y": 1.0}, 0)
    assert desk.reads == []


async def test_duplicate_and_late_notifications_change_nothing(desk: Desk) -> None:
    job_id = await desk.submit()
    submitted = await desk.payload()
    await desk.cycle(submitted, submitted)
    await desk.cycle(submitted)
    assert len(await tasks.claim(desk.sender, desk.worker.worker_id, 5)) == 1
    before = await desk.job(job_id)
    await desk.report(job_id)
    reported = await desk.payload()
    desk.instance.check_mail()
    await desk.cycle()
    ended = await desk.job(job_id)
    assert (ended["status"], ended["events"] > before["events"]) == ("completed", True)
    await desk.cycle(reported)
    await desk.cycle(submitted, reported)
    assert await desk.job(job_id) == ended

    other = await desk.begin()
    await desk.report(other)
    reported = await desk.payload()
    await desk.cycle(reported, reported)
    await desk.cycle(reported)
    assert {**await desk.job(other), "params": None} == {**ended, "params": None}


async def test_mail_is_read_even_if_its_notification_is_lost(desk: Desk) -> None:
    job_id = await desk.submit()
    desk.instance.check_mail()
    await desk.cycle()
    assert len(await tasks.claim(desk.sender, desk.worker.worker_id, 5)) == 1
    await desk.report(job_id)
    desk.instance.check_mail()
    await desk.cycle()
    assert (await desk.job(job_id))["status"] == "completed"


@pytest.mark.parametrize("text", ["ä" * 5000, '"\\\n' * 1200], ids=["long", "long when quoted"])
async def test_large_mail_stays_in_the_mailbox(desk: Desk, text: str) -> None:
    job_id = await desk.submit(x=text)
    assert await desk.payload() == ""
    await desk.cycle("")
    assert len(await tasks.claim(desk.sender, desk.worker.worker_id, 5)) == 1
    await desk.report(job_id, orjson.dumps({"text": text}))
    assert await desk.payload() == ""
    await desk.cycle("")
    assert (await desk.job(job_id))["output"] == {"text": text}


async def test_a_report_does_not_overtake_other_mail_of_its_job(desk: Desk) -> None:
    job_id, other = await desk.begin(), await desk.begin()
    await add_mail(desk.sender, [{"job_id": job_id, "kind": "pause", "data": {}}])
    await desk.report(job_id)
    assert await desk.payload() == ""
    await desk.report(other)  # It has none of its own.
    assert await desk.payload() != ""
    await add_mail(desk.sender, [{"job_id": JobId(1), "kind": "pause", "data": {}}] * 10)
    third = await desk.submit()
    await desk.cycle("")
    await tasks.claim(desk.sender, desk.worker.worker_id, 5)
    desk.payloads.clear()
    await desk.report(third)  # A large amount of mail is not searched.
    assert await desk.payload() == ""


async def test_mail_of_a_job_that_changed_owner_waits_for_its_new_owner(desk: Desk) -> None:
    job_id, new_id = await desk.begin(), await desk.submit()
    submitted = await desk.payload()
    await desk.report(job_id)
    reported = await desk.payload()
    await rows(desk.dsn, "UPDATE dagapp.dag_jobs SET owner_id = 'another', owner_epoch = owner_epoch + 1")
    before = await desk.job(job_id), await desk.job(new_id)
    await desk.cycle(submitted, reported)
    assert (await desk.job(job_id), await desk.job(new_id)) == before
    assert before[0]["mails"] == before[1]["mails"] == 1
    assert len(desk.instance.jobs) == 0


async def test_a_forged_notification_is_ignored(desk: Desk) -> None:
    """Every role that can connect to the database can notify. It does not fail a job either."""
    job_id = await desk.submit()
    submitted = await desk.payload()
    for place, content in ((INPUTS, '{"x": "forged"}'), (INPUTS, "["), (HASH, "forged"), (STATUS, "forged")):
        await desk.cycle(forged(submitted, place, content))
        assert (await desk.job(job_id))["params"] == {"x": 1}
    assert len(await tasks.claim(desk.sender, desk.worker.worker_id, 5)) == 1
    await desk.report(job_id)
    reported = await desk.payload()
    broken = [forged(reported, 0, 2**63), forged(reported, OUTPUT, "["), forged(reported, OUTPUT, "\0")]
    # Together, because the first refusal makes the owner read the mailbox.
    await desk.cycle(*broken, forged(reported, OUTPUT, '{"y": "forged"}'))
    job = await desk.job(job_id)
    assert (job["status"], job["output"]) == ("completed", {"y": 1.0})
    noted = "SELECT event_type FROM dagapp.dag_job_events WHERE event_status NOT IN ('info', 'success')"
    assert await rows(desk.dsn, noted) == []


@pytest.mark.parametrize("break_decision", [True, False], ids=["undecided", "unwritten"])
async def test_a_forged_notification_does_not_poison_its_job(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, break_decision: bool
) -> None:
    job_id = await desk.begin()
    await desk.report(job_id)
    payload = await desk.payload()
    if break_decision:
        monkeypatch.setattr(orchestrator, "decide", fail_once(decide))
    await desk.cycle(payload if break_decision else forged(payload, 0, 2**63))
    assert desk.instance.stats.errors == 0
    desk.instance.check_mail()
    await desk.cycle()
    assert (await desk.job(job_id))["status"] == "completed"


def test_malformed_notifications_are_ignored() -> None:
    numbers, texts = [[7] * count for count in (11, 14)], [["x"] * count for count in (11, 14)]
    for content in (None, 7, "x", [], {}, [1, 2], *numbers, *texts):
        assert read_payload(orjson.dumps(content).decode()) is None
    for text in ("", "x", "[1e400]", "[" * 100_000):
        assert read_payload(text) is None
    endless = [1, 2**62, 3, "completed", "n", "t", None, None, None, None, None]
    assert read_payload(orjson.dumps(endless).decode()) is None


def fail_once(function: Callable[..., Any]) -> Callable[..., Any]:
    calls: list[None] = []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise TypeError("unhashable type")
        return function(*arguments, **options)

    return failing


def forged(payload: str, place: int, content: object) -> str:
    values = orjson.loads(payload)
    assert values[place] != content
    values[place] = content
    return orjson.dumps(values).decode()
