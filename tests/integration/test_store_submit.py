import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from fleet import chain, graph, retry, rows, single, task
from job_owner import owner

from dagmaster.errors import IdempotencyConflict, Invalid, UnknownJob
from dagmaster.ids import JobId
from dagmaster.snowflakes import new_id
from dagmaster.store import jobs, submission
from dagmaster.store.connect import Connection, connect, opened
from dagmaster.store.instances import register_orchestrator, stop_orchestrator, this_instance
from dagmaster.store.submission import NewJob, Submitted

ANYTHING = graph({"work": task("echo", "END")}, "anything", start="work", additional_inputs=True)
EVIL = "a\0b"
LONE_SURROGATE = "\ud800"


async def submit(conn: Connection, job: NewJob, **options: Any) -> Submitted:
    return await submission.submit(conn, job, threshold_seconds=30, **options)


async def counts(dsn: str) -> dict[str, int]:
    [row] = await rows(
        dsn,
        """SELECT (SELECT count(*) FROM dagapp.dag_jobs) AS jobs,
                  (SELECT count(*) FROM dagapp.dag_node_states) AS nodes,
                  (SELECT count(*) FROM dagapp.dag_job_events) AS events,
                  (SELECT count(*) FROM dagapp.dag_mailbox) AS mail,
                  (SELECT count(*) FROM dagapp.dag_workflows) AS workflows""",
    )
    return row


async def test_a_submission_stores_job_nodes_event_and_mail(dsn: str) -> None:
    definition = graph(
        {"first": task("echo", "second", retry=retry(5)), "second": task("echo", "END")},
        "pair",
        start="first",
        version=4,
    )
    async with opened(dsn, application="test") as conn:
        new = NewJob(
            definition,
            {},
            priority=7,
            submitted_by="ada",
            correlation_id="c-1",
            metadata={"team": "maps"},
            callback_url="http://x",
        )
        submitted = await submit(conn, new, source_app="api")
        assert submitted.is_new
        job = await jobs.get_job(conn, submitted.job_id)
    assert job["status"] == "pending"
    assert (job["workflow_id"], job["workflow_version"], job["priority"]) == ("pair", 4, 7)
    assert (job["submitted_by"], job["correlation_id"], job["metadata"]) == ("ada", "c-1", {"team": "maps"})
    assert job["callback_url"] == "http://x"
    nodes = await rows(dsn, "SELECT node_id, status, max_retries, created_at FROM dagapp.dag_node_states")
    assert {(row["node_id"], row["status"], row["max_retries"]) for row in nodes} == {
        ("START", "pending", 3),
        ("first", "pending", 5),
        ("second", "pending", 0),
        ("END", "pending", 3),
    }
    assert {row["created_at"] for row in nodes} == {job["created_at"]}
    [event] = await rows(dsn, "SELECT * FROM dagapp.dag_job_events")
    assert (event["event_type"], event["event_status"], event["source_app"]) == ("job_created", "info", "api")
    assert event["event_data"] == {
        "workflow_id": "pair",
        "workflow_version": 4,
        "workflow_hash": definition.workflow.content_hash,
        "input_params": {},
        "actor": None,
        "submitted_by": "ada",
        "correlation_id": "c-1",
        "priority": 7,
    }
    [mail] = await rows(dsn, "SELECT job_id, kind FROM dagapp.dag_mailbox")
    assert mail == {"job_id": submitted.job_id, "kind": "submitted"}


async def test_a_submission_is_atomic(dsn: str) -> None:
    await rows(dsn, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no more'; END $$")
    for table in ("dag_node_states", "dag_job_events", "dag_mailbox", "dag_workflows"):
        trigger = f"TRIGGER refuse BEFORE INSERT ON dagapp.{table} FOR EACH ROW EXECUTE FUNCTION refuse()"
        await rows(dsn, f"CREATE {trigger}")
        async with opened(dsn, application="test") as conn:
            with pytest.raises(psycopg.errors.RaiseException):
                await submit(conn, NewJob(single(), {}))
        assert set((await counts(dsn)).values()) == {0}
        await rows(dsn, f"DROP TRIGGER refuse ON dagapp.{table}")


async def test_the_definition_is_pinned_once_for_all_jobs_that_run_it(dsn: str) -> None:
    definition = single()
    async with opened(dsn, application="test") as conn:
        for _ in range(3):
            await submit(conn, NewJob(definition, {}))
    [pinned] = await rows(dsn, "SELECT workflow_hash, definition FROM dagapp.dag_workflows")
    assert pinned["workflow_hash"] == definition.workflow.content_hash
    assert definition.workflow.model_validate(pinned["definition"]) == definition.workflow


async def test_a_pinned_definition_is_not_sent_again(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        await submit(conn, NewJob(single(), {}))
        await rows(
            dsn,
            """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'sent again'; END$$;
               CREATE TRIGGER refuse BEFORE INSERT ON dagapp.dag_workflows FOR EACH ROW EXECUTE FUNCTION refuse()""",
        )
        await submit(conn, NewJob(single(), {}))
        with pytest.raises(psycopg.errors.RaiseException, match="sent again"):
            await submit(conn, NewJob(single(workflow_id="another"), {}))
    assert (await counts(dsn))["jobs"] == 2


async def test_a_job_is_assigned_to_a_live_orchestrator(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        assert (await submit(conn, NewJob(single(), {}))).owner_id is None
        me = this_instance()
        await register_orchestrator(conn, me)
        first = await submit(conn, NewJob(single(), {}))
        assert first.owner_id == me.instance_id
        assert (await jobs.get_job(conn, first.job_id))["owner_epoch"] == 1
        await rows(dsn, "UPDATE dagapp.dag_orchestrators SET heartbeat_at = now() - interval '31 seconds'")
        assert (await submit(conn, NewJob(single(), {}))).owner_id is None
        await rows(dsn, "UPDATE dagapp.dag_orchestrators SET heartbeat_at = now()")
        await stop_orchestrator(conn, me, {})
        assert (await submit(conn, NewJob(single(), {}))).owner_id is None


async def test_the_submitter_can_choose_the_owner(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        await register_orchestrator(conn, this_instance())
        assert (await submit(conn, NewJob(single(), {}), owner_id="me")).owner_id == "me"


async def test_submissions_are_distributed_over_orchestrators(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        instances = [this_instance(), this_instance()]
        for instance in instances:
            await register_orchestrator(conn, instance)
        owners = {(await submit(conn, NewJob(single(), {}))).owner_id for _ in range(40)}
    assert owners == {instance.instance_id for instance in instances}


async def test_the_same_key_and_content_return_the_first_job(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        first = await submit(conn, NewJob(ANYTHING, {"a": 1, "b": [1, {"c": 2}]}, idempotency_key="k"))
        again = await submit(conn, NewJob(ANYTHING, {"b": [1, {"c": 2}], "a": 1}, idempotency_key="k"))
    assert first.is_new
    assert again == Submitted(first.job_id, False)
    assert (await counts(dsn)) | {"nodes": 3} == {"jobs": 1, "nodes": 3, "events": 1, "mail": 1, "workflows": 1}


async def test_the_same_key_with_other_content_is_a_conflict_that_names_the_job(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        first = await submit(conn, NewJob(ANYTHING, {"a": 1}, idempotency_key="k"))
        for definition, inputs in ((ANYTHING, {"a": 2}), (single(), {"a": 1})):
            with pytest.raises(IdempotencyConflict, match=str(first.job_id)):
                await submit(conn, NewJob(definition, inputs, idempotency_key="k"))
    assert (await counts(dsn))["jobs"] == 1


async def test_keys_are_separate_for_each_submitter(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        submitted = [
            await submit(conn, NewJob(ANYTHING, {"who": who}, submitted_by=who, idempotency_key="k"))
            for who in ("", "ada", "bob")
        ]
        again = await submit(conn, NewJob(ANYTHING, {"who": "ada"}, submitted_by="ada", idempotency_key="k"))
    assert len({job.job_id for job in submitted}) == 3
    assert again.job_id == submitted[1].job_id


async def test_jobs_without_a_key_are_never_duplicates(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        assert len({(await submit(conn, NewJob(single(), {}))).job_id for _ in range(5)}) == 5


async def test_twenty_concurrent_submissions_of_one_key_give_one_job(dsn: str) -> None:
    definition = single()

    async def submit_alone() -> Submitted:
        async with opened(dsn, application="test") as conn:
            return await submit(conn, NewJob(definition, {}, idempotency_key="k"))

    submitted = await asyncio.gather(*(submit_alone() for _ in range(20)))
    assert len({job.job_id for job in submitted}) == 1
    assert [job.is_new for job in submitted].count(True) == 1
    assert await counts(dsn) == {"jobs": 1, "nodes": 3, "events": 1, "mail": 1, "workflows": 1}


async def test_a_key_that_is_repeated_within_one_call_gives_one_job(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        new = [NewJob(ANYTHING, {"n": n % 2}, idempotency_key=f"k{n % 2}") for n in range(6)]
        submitted = await submission.submit_many(conn, new, threshold_seconds=30)
    assert len({job.job_id for job in submitted}) == 2
    assert [job.is_new for job in submitted] == [True, True, False, False, False, False]


async def test_five_hundred_jobs_are_submitted_in_one_call(dsn: str) -> None:
    graphs = [chain(3), single(), single(workflow_id="other")]
    new = [NewJob(graphs[n % 3], {}, correlation_id=f"c{n}") for n in range(500)]
    async with opened(dsn, application="test") as conn:
        submitted = await submission.submit_many(conn, new, threshold_seconds=30)
    assert len({job.job_id for job in submitted}) == 500
    stored = await rows(dsn, "SELECT job_id, workflow_id, correlation_id FROM dagapp.dag_jobs ORDER BY job_id")
    assert [(row["job_id"], row["correlation_id"]) for row in stored] == [
        (job.job_id, f"c{n}") for n, job in enumerate(submitted)
    ]
    nodes = await rows(dsn, "SELECT job_id, count(*) AS n FROM dagapp.dag_node_states GROUP BY job_id ORDER BY job_id")
    assert [row["n"] for row in nodes] == [len(job.graph.nodes) for job in new]


async def test_concurrent_callers_with_the_same_new_definitions_do_not_deadlock(dsn: str) -> None:
    await rows(
        dsn,
        """CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$;
           CREATE TRIGGER slowly BEFORE INSERT ON dagapp.dag_jobs FOR EACH ROW EXECUTE FUNCTION slowly();
           CREATE TRIGGER slowly BEFORE INSERT ON dagapp.dag_workflows FOR EACH ROW EXECUTE FUNCTION slowly()""",
    )
    graphs = [single(workflow_id=f"w{n}") for n in range(5)]
    new = [NewJob(item, {}, idempotency_key=item.workflow.workflow_id) for item in graphs]

    async def submit_all(these: list[NewJob]) -> list[Submitted]:
        async with opened(dsn, application="test") as conn:
            return await submission.submit_many(conn, these, threshold_seconds=30)

    forward, backward = new, new[::-1]
    answers = await asyncio.gather(*(submit_all(these) for these in (forward, backward) * 2))
    assert {frozenset(item.job_id for item in answer) for answer in answers} == {
        frozenset(item.job_id for item in answers[0])
    }
    assert (await counts(dsn))["jobs"] == 5


STRANGE_INPUTS: list[dict[str, Any]] = [
    {"s": "äöü 漢字 \u202e rtl \U0001f680\U0001f469\u200d\U0001f680 \x01\x1f\x7f '; DROP TABLE dagapp.dag_jobs; --"},
    {"%(x)s": "$1 :limit %s {{ not a template }}", "\\u0000": "\\u0000 is only text"},
    {"deep": [[[[[{"a": [None, True, 1.5, -3, 1e300]}]]]]]},
    {"": {"": ""}},
]


async def test_inputs_are_read_back_unchanged(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        for inputs in STRANGE_INPUTS:
            submitted = await submit(conn, NewJob(ANYTHING, inputs))
            assert (await jobs.get_job(conn, submitted.job_id))["input_params"] == inputs


async def test_megabytes_of_inputs_are_stored(dsn: str) -> None:
    inputs = {"items": ["x" * 1000] * 3000}
    async with opened(dsn, application="test") as conn:
        submitted = await submit(conn, NewJob(ANYTHING, inputs, idempotency_key="k"))
        assert (await jobs.get_job(conn, submitted.job_id))["input_params"] == inputs


async def test_values_that_cannot_be_stored_are_refused_with_the_reason(dsn: str) -> None:
    refused = [
        (NewJob(ANYTHING, {"s": EVIL}), "NUL"),
        (NewJob(ANYTHING, {EVIL: 1}), "NUL"),
        (NewJob(ANYTHING, {"s": [{"t": EVIL}]}, idempotency_key="k"), "NUL"),
        (NewJob(ANYTHING, {}, metadata={"s": EVIL}), "NUL"),
        (NewJob(ANYTHING, {}, submitted_by=EVIL), "NUL"),
        (NewJob(ANYTHING, {}, idempotency_key=EVIL), "NUL"),
        (NewJob(ANYTHING, {"s": LONE_SURROGATE}), "surrogates"),
        (NewJob(ANYTHING, {"s": object()}), "object"),
        (NewJob(ANYTHING, {"n": 10**30}), "64-bit"),
        (NewJob(ANYTHING, {}, idempotency_key="k" * 129), "idempotency_key may have at most 128"),
        (NewJob(ANYTHING, {}, submitted_by="k" * 129), "submitted_by may have at most 128"),
        (NewJob(ANYTHING, {}, correlation_id="k" * 129), "correlation_id may have at most 128"),
        (NewJob(ANYTHING, {}, priority=2**31), "out of range"),
    ]
    async with opened(dsn, application="test") as conn:
        for job, named in refused:
            with pytest.raises(Invalid, match=named):
                await submit(conn, job)
        assert (await submit(conn, NewJob(single(), {}))).is_new
    assert (await counts(dsn))["jobs"] == 1


async def test_one_invalid_job_refuses_the_whole_call(dsn: str) -> None:
    new = [NewJob(ANYTHING, {"s": "fine"}), NewJob(ANYTHING, {"s": EVIL}), NewJob(ANYTHING, {})]
    async with opened(dsn, application="test") as conn:
        with pytest.raises(Invalid):
            await submission.submit_many(conn, new, threshold_seconds=30)
    assert (await counts(dsn))["jobs"] == 0


async def test_submitting_nothing_is_valid(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        assert await submission.submit_many(conn, [], threshold_seconds=30) == []


async def test_the_callers_transaction_decides_whether_the_job_exists(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                await submit(conn, NewJob(single(), {}, idempotency_key="k"))
                raise ZeroDivisionError
        assert (await counts(dsn))["jobs"] == 0
        async with conn.transaction():
            first = await submit(conn, NewJob(single(), {}, idempotency_key="k"))
            assert await submit(conn, NewJob(single(), {}, idempotency_key="k")) == Submitted(first.job_id, False)
    assert (await counts(dsn))["jobs"] == 1


async def test_jobs_are_listed_newest_first_and_filtered(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        ids = [(await submit(conn, NewJob(single(workflow_id=f"w{n % 2}"), {}))).job_id for n in range(6)]
        await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'completed' WHERE job_id = %s", ids[0])
        assert [row["job_id"] for row in await jobs.list_jobs(conn)] == ids[::-1]
        assert [row["job_id"] for row in await jobs.list_jobs(conn, limit=2, offset=1)] == [ids[4], ids[3]]
        assert [row["job_id"] for row in await jobs.list_jobs(conn, jobs.JobFilter(jobs.statuses_of("COMPLETED")))] == [
            ids[0]
        ]
        assert [row["job_id"] for row in await jobs.list_jobs(conn, jobs.JobFilter(workflow_id="w1"))] == [
            ids[5],
            ids[3],
            ids[1],
        ]
        assert await jobs.list_jobs(conn, jobs.JobFilter(("pending",), "nothing")) == []


async def test_an_unknown_job_is_reported_as_such(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        missing = JobId(new_id())
        with pytest.raises(UnknownJob, match=str(missing)):
            await jobs.get_job(conn, missing)


async def test_only_live_jobs_of_the_owner_are_loaded(dsn: str) -> None:
    async with owner(dsn) as me, await connect(dsn, application="test") as conn:
        mine = await me.submit(single(), priority=3, correlation_id="c")
        others = await submit(conn, NewJob(single(), {}), owner_id="somebody")
        ended = await me.submit(single())
        await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'cancelled' WHERE job_id = %s", ended.job_id)
        loaded = await me.load_jobs(mine.job_id, others.job_id, ended.job_id, JobId(1))
    [job] = loaded
    assert job.owner_epoch == 1
    assert (job.state.job_id, job.state.priority, job.state.correlation_id) == (mine.job_id, 3, "c")
    assert datetime.now(UTC) - job.state.created_at < timedelta(minutes=1)
