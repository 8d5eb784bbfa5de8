"""Checks after a storm, besides the guarantees: no job missing, no slot occupied, no process left."""

import json
import signal
import time
from collections.abc import Iterable, Mapping, Sequence

import psutil
from ledger import LEDGER
from plans import PlannedJob
from processes import Process, Stage
from storm_workflows import MEETING

JOBS = "SELECT job_id, workflow_id FROM dagapp.dag_jobs"
LEAVE_SECONDS = 60.0
SIGNS_OF_A_CRASH = ("Fatal Python error", "never retrieved")
OUTCOME = "SELECT status::text, error_message FROM dagapp.dag_jobs WHERE job_id = %s"


def assert_all_are_there(stage: Stage, planned: Sequence[PlannedJob], job_ids: Mapping[int, int]) -> None:
    """Each submitted job exists as requested, and no other. Ids are by plan."""
    expected = {job_ids[job.number]: job.shape.workflow_id for job in planned if job.number in job_ids}
    assert len(expected) == len(planned), f"{len(planned) - len(expected)} plans have no job of their own"
    stored = {row["job_id"]: row["workflow_id"] for row in stage.database.rows(JOBS)}
    lost = {job_id: kind for job_id, kind in expected.items() if stored.get(job_id) != kind}
    assert not lost, f"jobs were lost or changed: {lost}"
    assert stored.keys() == expected.keys(), f"nobody asked for these: {stored.keys() - expected.keys()}"


def assert_all_slots_are_free(stage: Stage, slots: int, *, seconds: float) -> None:
    """As many tasks as all workers have slots run at the same moment."""
    job_id = stage.submit(MEETING, people=list(range(slots)), seconds=seconds)
    stage.until_ended(job_id, seconds=2 * seconds + 60)
    outcome = stage.database.row(OUTCOME, job_id)
    assert outcome["status"] == "completed", f"a slot is held: {outcome}"


def assert_doctor_finds_nothing(stage: Stage) -> None:
    doctor = stage.start("doctor", "--json")
    code = doctor.wait()
    findings = doctor.out.read_text()
    assert code == 0 and json.loads(findings)["findings"] == [], f"the doctor found: {findings}{doctor.last_words()}"


def assert_nobody_crashed(processes: Iterable[Process]) -> None:
    """Every ended process was ended by the storm, and none logged an error."""
    for process in processes:
        code = process.popen.poll()
        assert code is None or code >= 0 or code == -signal.SIGKILL, f"it died by itself:\n{process.last_words()}"
        log = process.log.read_text(errors="replace")
        for sign in SIGNS_OF_A_CRASH:
            assert sign not in log, f"{sign!r} was said:\n{log[max(0, log.index(sign) - 500) :][:4000]}"


def assert_nobody_is_left_behind(dsn: str) -> None:
    """The processes of this stage were killed, and no child process remains."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while left := [process for process in psutil.process_iter() if _writes_to(process, dsn)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def _writes_to(process: psutil.Process, dsn: str) -> bool:
    """A process shows the environment that it was started with."""
    try:
        return process.environ().get(LEDGER) == dsn
    except psutil.Error:  # It belongs to another user, or is gone.
        return False
