"""Faults of a host: its clock changes, and processes of other users are hidden."""

import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from processes import ORCHESTRATOR, PATIENCE_SECONDS, POLL_SECONDS, WORKER, Process, Stage
from promise import assert_promise_kept
from shapes import CHAIN, FLAKY, LONG

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

RUNS = "SELECT count(*) > 0 FROM acceptance_ledger WHERE event = 'start' AND job_id = %s"
IS_TIMED = (
    "SELECT count(*) > 0 FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'toil' AND status = 'running'"
)
ARE_DISPATCHED = "SELECT count(DISTINCT job_id) = 3 FROM dagapp.dag_node_states WHERE task_id IS NOT NULL"
RETRIES = "SELECT sum(retry_count) FROM dagapp.dag_node_states WHERE job_id = %s"

# The clock changes.

WALL_CLOCK = Path(__file__).parent / "wall_clock"
# `wall clock: 2026-05-01 12:00:00.123456+00:00`
TOLD = re.compile(r"^wall clock: (.+)$", re.MULTILINE)
# The database server keeps its own clock.
FOREIGN_TIMES = """
    SELECT event_type::text, created_at FROM dagapp.dag_job_events
    WHERE created_at NOT BETWEEN (SELECT min(started_at) FROM dagapp.dag_orchestrators) - interval '1 minute'
        AND now() + interval '1 minute'
    UNION ALL SELECT status::text, completed_at FROM dagapp.dag_node_states
    WHERE completed_at NOT BETWEEN started_at AND now() + interval '1 minute'
"""


def set_clock(process: Process) -> datetime:
    """Return the time that the process shows afterwards."""
    process.popen.send_signal(signal.SIGUSR2)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (match := TOLD.search(process.log.read_text())):
        assert time.monotonic() < deadline, process.last_words()
        time.sleep(POLL_SECONDS)
    return datetime.fromisoformat(match[1])


@pytest.mark.parametrize("hours", [2, -2])
def test_jobs_survive_a_clock_change_on_an_orchestrators_host(stage: Stage, hours: int) -> None:
    """With a fast clock no timeout passes, and with a slow one no retry waits."""
    through = ("env", f"PYTHONPATH={WALL_CLOCK}", f"WALL_CLOCK_HOURS={hours}")
    orchestrator = stage.start(*ORCHESTRATOR, through=through)
    stage.launch(WORKER)
    stage.await_role(orchestrator)
    stage.hold("toil")
    job_id = stage.submit(LONG, first_seconds=0.0)
    stage.until(IS_TIMED, job_id)
    skewed = set_clock(orchestrator)
    assert abs(skewed - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(minutes=1)
    stage.submit_all([(FLAKY, {}), (CHAIN, {"n": 1})])
    stage.until(ARE_DISPATCHED)  # The orchestrator has looked at its changed clock while the task runs.
    stage.release()
    stage.until_ended()
    assert stage.database.value(RETRIES, job_id) == 0
    assert stage.database.rows(FOREIGN_TIMES) == []
    assert_promise_kept(stage.dsn)


# Processes are hidden.

WITHIN_THE_LEASE_SECONDS = 45.0
NOBODY = 65534
# Another user, who sees only its own processes in /proc. It can read whatever it needs to start, wherever
# Python is installed, but can neither see nor signal processes of others.
HIDDEN = f"""
    mount -t proc -o hidepid=2 proc /proc &&
    exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --bounding-set=-all,+dac_read_search \
        --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search "$@"
"""
AS_ANOTHER = ("unshare", "--mount", "--propagation=private", "sh", "-c", HIDDEN, "sh")
LOST = "SELECT count(*) FROM dagapp.dag_workers WHERE status = 'lost'"
# Whether it sees a process, and the error of a signal to it.
LOOK = """
import os, sys
try:
    os.kill(int(sys.argv[1]), 0)
except OSError as error:
    print(os.path.exists("/proc/" + sys.argv[1]), type(error).__name__)
"""


def look_at(pid: int) -> str:
    """As the other user sees it. Skips where the test cannot become another user."""
    looking = [*AS_ANOTHER, sys.executable, "-c", LOOK, str(pid)]
    try:
        return subprocess.run(looking, capture_output=True, text=True, check=True, timeout=90).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "").strip() or error
        pytest.skip(f"hiding /proc takes root, a mount namespace of its own, unshare and setpriv: {reason}")


def test_an_orchestrator_that_cannot_see_worker_processes_declares_none_lost(stage: Stage) -> None:
    """A dead worker is still recognised, long before the lease has expired."""
    assert look_at(os.getpid()) == "False PermissionError"
    [worker] = stage.launch(WORKER)
    orchestrator = stage.start(*ORCHESTRATOR, through=AS_ANOTHER)  # It first looks for dead instances,
    stage.await_role(orchestrator)
    stage.submit(CHAIN, n=1, seconds=0.5)  # and then twice a second.
    stage.until_ended()
    assert stage.database.value(LOST) == 0
    assert_promise_kept(stage.dsn)

    job_id = stage.submit(LONG, first_seconds=120)
    stage.until(RUNS, job_id)
    stage.kill(worker)
    stage.launch(WORKER)
    stage.until_ended(seconds=WITHIN_THE_LEASE_SECONDS)
    assert stage.database.value(LOST) == 1
    assert stage.database.value(RETRIES, job_id) == 1
    assert_promise_kept(stage.dsn, killed=stage.killed)
