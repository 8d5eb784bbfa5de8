"""Jobs of programs that ended inside `run()`: no worker consumes their queue any more."""

from fleet import fleet, single

from dagmaster.store.connect import opened
from dagmaster.store.explanations import explain_job
from dagmaster.store.instances import register_worker, this_instance
from dagmaster.store.job_control import cancel_abandoned
from dagmaster.store.queues import is_local, new_local_queue

WAITING = "SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting"
# A new task may not even be zero seconds old: the orchestrator's clock may be a little ahead of the database's.
# The orchestrator's own chore waits for five minutes.
AGE = "UPDATE dagapp.dag_tasks_waiting SET dispatched_at = dispatched_at - interval '1 minute'"


def test_the_queue_of_a_program_is_told_from_queues_that_users_name() -> None:
    assert is_local(new_local_queue())
    assert not is_local("local-gpu") and not is_local("local-7") and not is_local("local-7-8")


async def test_an_orchestrator_cancels_the_job_of_a_program_that_has_ended(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator(abandoned_jobs_seconds=0.1, abandoned_after_seconds=0.0, settle_seconds=0)
        [job] = await running.ended(await running.submit(single(queue=new_local_queue())))
        assert job["status"] == "cancelled"
        [event] = await running.events(job["job_id"], "job_cancelled")
        assert event["event_data"]["reason"] == "the program that ran it has ended"


async def test_a_job_whose_program_lives_is_kept(dsn: str) -> None:
    async with fleet(dsn) as running, opened(dsn, application="test") as conn:
        await running.orchestrator()
        queue = new_local_queue()
        await running.submit(single(queue=queue))
        await running.until(WAITING)
        await conn.execute(AGE)
        assert await cancel_abandoned(conn, age_seconds=3600) == 0
        await register_worker(conn, this_instance(), [queue], 1)
        assert await cancel_abandoned(conn, age_seconds=0) == 0
        await conn.execute("UPDATE dagapp.dag_workers SET status = 'lost'")
        assert await cancel_abandoned(conn, age_seconds=0) == 1


async def test_the_explanation_of_such_a_job_says_that_its_program_has_stopped(dsn: str) -> None:
    async with fleet(dsn) as running, opened(dsn, application="test") as conn:
        await running.orchestrator()
        job_id = await running.submit(single(queue=new_local_queue()))
        await running.until(WAITING)
        explained = await explain_job(conn, job_id, threshold_seconds=30)
        assert "the program that runs this job has stopped" in explained.sentence


async def test_a_task_on_a_queue_that_users_name_waits_for_its_worker(dsn: str) -> None:
    async with fleet(dsn) as running, opened(dsn, application="test") as conn:
        await running.orchestrator()
        await running.submit(single(queue="local-gpu"))
        await running.until(WAITING)
        await conn.execute(AGE)
        assert await cancel_abandoned(conn, age_seconds=0) == 0
