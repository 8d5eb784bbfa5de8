"""The checks after a storm detect damage."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import processes
import psycopg
import pytest
from checks import (
    assert_all_are_there,
    assert_all_slots_are_free,
    assert_doctor_finds_nothing,
    assert_nobody_crashed,
    assert_nobody_is_left_behind,
)
from ledger import LEDGER
from persistent_client import PersistentClient
from plans import PlannedJob
from processes import BOTH, Process, Stage
from promise import Fates, assert_promise_kept, assert_records_agree
from psycopg.rows import dict_row
from shapes import CHAIN
from storm_workflows import ENDLESS, HOPELESS, KINDS, PATIENT_CHAIN

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

SLOTS = 4
PLANNED = [
    PlannedJob(0, 0, CHAIN, {"n": 1, "seconds": 0.02}),
    PlannedJob(1, 0, PATIENT_CHAIN, {"n": 1, "seconds": 0.02}),
    PlannedJob(2, 0, HOPELESS, {}),
    PlannedJob(3, 0, ENDLESS, {}),
]
GOES_ON = "SELECT count(*) = 1 FROM acceptance_ledger WHERE job_id = %s AND node_id = 'go_on'"
CHAINS, PATIENTS, ENDLESSES = (
    f"job_id IN (SELECT job_id FROM dagapp.dag_jobs WHERE workflow_id = '{kind}')"
    for kind in ("chain", "patient_chain", "endless")
)
NEVER = f"node_id = 'never' AND {ENDLESSES}"
NOT_SKIPPED = f"DELETE FROM dagapp.dag_job_events WHERE event_type = 'node_skipped' AND {NEVER}"
# Kinds of damage, and the claim that each breaks.
DAMAGES = [
    (f"UPDATE acceptance_ledger SET at = at + interval '1 minute' WHERE {ENDLESSES}", "after its job was cancelled"),
    (f"UPDATE acceptance_ledger SET attempt = 1 WHERE {CHAINS}", "the policy does not allow"),
    ("UPDATE acceptance_ledger SET attempt = 51", "the policy does not allow"),
    ("UPDATE acceptance_ledger SET attempt = -1 WHERE event = 'fail for good'", "was not tried again"),
    (
        "INSERT INTO acceptance_ledger SELECT execution_id, e, task_id, job_id, node_id, attempt - n, pid, at "
        f"FROM acceptance_ledger, (VALUES ('saved x', 1), ('begin x', 0)) AS x(e, n) WHERE event = 'end' AND {CHAINS}",
        "done again by a later attempt",
    ),
    (f"UPDATE dagapp.dag_node_states SET status = 'pending' WHERE {NEVER}; {NOT_SKIPPED}", "left open"),
    (
        f"UPDATE dagapp.dag_node_states SET status = 'completed' WHERE {NEVER}; {NOT_SKIPPED};"
        "INSERT INTO dagapp.dag_job_events (job_id, node_id, event_type, event_status, created_at, source_app) "
        "SELECT n.job_id, n.node_id, kind::dagapp.event_type, 'info', now(), 'x' FROM dagapp.dag_node_states n, "
        "unnest('{node_ready,node_dispatched,node_started,node_completed}'::text[]) WITH ORDINALITY AS k(kind, number) "
        f"WHERE {NEVER} ORDER BY number",
        "not in the definition",
    ),
    (
        f"UPDATE dagapp.dag_node_states SET output = '5' WHERE node_id = 'begin' AND {ENDLESSES};"
        f"UPDATE dagapp.dag_task_results SET output = '5' WHERE node_id = 'begin' AND {ENDLESSES}",
        "not the result that it would have",
    ),
    (
        f"UPDATE dagapp.dag_jobs SET status = 'cancelled' WHERE {PATIENTS};"
        "UPDATE dagapp.dag_job_events SET event_type = 'job_cancelled' "
        f"WHERE event_type = 'job_completed' AND {PATIENTS}",
        "^patient_chain",
    ),
]


def test_each_kind_of_damage_is_detected(stage: Stage) -> None:
    client = PersistentClient(stage.dsn, "checks")
    [both] = stage.launch(BOTH)
    endless = [client.submit(job) for job in PLANNED][-1]
    stage.until(GOES_ON, endless)
    client.cancel(endless)
    stage.until_ended()
    assert_promise_kept(stage.dsn, shapes=KINDS, cancelled=client.cancelled)
    both.kill()
    with psycopg.connect(stage.dsn, row_factory=dict_row) as conn:
        for damage, claim in DAMAGES:
            conn.execute(damage)
            with pytest.raises(AssertionError, match=claim):
                assert_records_agree(conn, Fates(cancelled=client.cancelled), KINDS)
                pytest.fail(f"not seen: {damage}")
            conn.rollback()
    check_jobs_are_counted(stage, client)
    assert_doctor_finds_nothing(stage)
    stage.database.rows(f"UPDATE dagapp.dag_jobs SET completed_at = NULL WHERE {CHAINS}")
    with pytest.raises(AssertionError, match="ended_jobs_without_time"):
        assert_doctor_finds_nothing(stage)


def check_jobs_are_counted(stage: Stage, client: PersistentClient) -> None:
    ids = client.job_ids
    assert_all_are_there(stage, PLANNED, ids)
    for planned, job_ids, seen in (
        (PLANNED, ids | {0: ids[1]}, "no job of their own"),
        (PLANNED, {number: ids[number] for number in (0, 1, 2)}, "no job of their own"),
        (PLANNED, ids | {0: 1}, "lost or changed"),
        ([replace(PLANNED[0], shape=HOPELESS), *PLANNED[1:]], ids, "lost or changed"),
        (PLANNED[1:], ids, "nobody asked"),
    ):
        with pytest.raises(AssertionError, match=seen):
            assert_all_are_there(stage, planned, job_ids)


def test_leftover_processes_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checks.LEAVE_SECONDS", 0)
    assert_nobody_is_left_behind("nowhere")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={LEDGER: "nowhere"}) as child:
        with pytest.raises(AssertionError, match="left behind"):
            assert_nobody_is_left_behind("nowhere")
        child.kill()


def test_an_occupied_slot_is_detected(stage: Stage) -> None:
    client = PersistentClient(stage.dsn, "slots")
    stage.launch(BOTH, worker_concurrency=SLOTS)
    endless = client.submit(PLANNED[-1])
    stage.until(GOES_ON, endless)
    with pytest.raises(AssertionError, match="a slot is held"):
        assert_all_slots_are_free(stage, SLOTS, seconds=1)
    client.cancel(endless)
    stage.until_ended()
    assert_all_slots_are_free(stage, SLOTS, seconds=60)


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died by itself"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "died by itself"),
        ("sys.stderr.write('Future exception was never retrieved')", "never retrieved"),
        ("faulthandler.dump_traceback(), sys.stderr.write('Fatal Python error: Aborted')", "Fatal Python error"),
    ],
)
def test_a_process_that_crashes_or_logs_an_error_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, complaint: str
) -> None:
    monkeypatch.setattr(processes, "DAGMASTER", sys.executable)
    process = Process(("-c", f"import faulthandler, os, signal, sys; {act}"), os.environ, tmp_path, 0, is_real=True)
    process.wait()
    with pytest.raises(AssertionError, match=complaint):
        assert_nobody_crashed([process])


def test_killed_and_stopped_processes_are_not_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "DAGMASTER", sys.executable)
    sleeper = Process(("-c", "import time; time.sleep(60)"), os.environ, tmp_path, 0, is_real=True)
    loser = Process(("-c", "raise SystemExit(3)"), os.environ, tmp_path, 1, is_real=True)
    sleeper.kill()
    loser.wait()
    assert_nobody_crashed([sleeper, loser])
