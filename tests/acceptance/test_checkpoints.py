"""A task of ten phases whose worker is killed or stopped does not repeat completed phases."""

import signal
import time

import pytest
from processes import ORCHESTRATOR, PATIENCE_SECONDS, WORKER, Process, Stage
from shapes import Outcome, Shape

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

PHASES = [f"phase_{number}" for number in range(1, 11)]
PHASE_SECONDS = 0.05
SAVED = "SELECT count(*) >= %s FROM dagapp.dag_checkpoints WHERE job_id = %s"
# It reports progress after its first checkpoint.
HAS_GONE_ON = "SELECT count(*) > 0 FROM dagapp.dag_task_results WHERE job_id = %s AND progress_current >= 1"


def phases(retries: int) -> Shape:
    return single("ledger.held_phases", f"{{phases: {len(PHASES)}, phase_seconds: {PHASE_SECONDS}}}", retries)


def single(handler: str, params: str, retries: int) -> Shape:
    return Shape(
        "phases",
        f"""
workflow_id: phases
nodes:
  START: {{type: start, next: work}}
  work:
    type: task
    handler: {handler}
    queue: work
    params: {params}
    retry: {{max_attempts: {retries}, initial_delay_seconds: 0}}
    next: END
  END: {{type: end}}
""",
        lambda _: Outcome("completed", {}, {}),
    )


def executed(stage: Stage, job_id: int) -> dict[str, object]:
    job = stage.database.row("SELECT status, result_data FROM dagapp.dag_jobs WHERE job_id = %s", job_id)
    assert job["status"] == "completed"
    return job["result_data"]["work"]


def attempts_of_phases(stage: Stage, job_id: int) -> list[tuple[str, str]]:
    """The attempt that completed each phase: each row is one real execution."""
    rows = stage.database.rows(
        "SELECT phase_name, task_id FROM dagapp.dag_checkpoints WHERE job_id = %s ORDER BY created_at", job_id
    )
    return [(row["phase_name"], row["task_id"].rpartition("_")[2]) for row in rows]


def until_stopping(worker: Process) -> None:
    """Until it has received the first signal."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "press Ctrl-C again to stop immediately" not in worker.last_words():
        assert time.monotonic() < deadline, worker.last_words()
        time.sleep(0.01)


def test_a_worker_killed_after_the_second_of_ten_phases_repeats_none(stage: Stage) -> None:
    _, worker = stage.launch(ORCHESTRATOR, WORKER)
    stage.hold(PHASES[2])
    job_id = stage.submit(phases(retries=2))
    stage.until(SAVED, 2, job_id)
    stage.kill(worker)
    stage.release()
    stage.launch(WORKER)
    stage.until_ended(job_id)
    assert executed(stage, job_id) == {
        "phases_completed": PHASES,
        "executed": PHASES[2:],
        "resumed_after": PHASES[1],
    }
    assert attempts_of_phases(stage, job_id) == [
        *((name, "0") for name in PHASES[:2]),
        *((name, "1") for name in PHASES[2:]),
    ]


def test_a_stopping_worker_ends_at_the_next_checkpoint_and_another_continues(stage: Stage) -> None:
    _, worker = stage.launch(ORCHESTRATOR, WORKER)
    stage.hold(PHASES[1])
    job_id = stage.submit(phases(retries=0))  # A returned task costs no retry.
    stage.until(HAS_GONE_ON, job_id)  # A signal just after the first checkpoint was stored would end it there.
    worker.terminate()
    until_stopping(worker)
    stage.release()
    assert worker.wait() == 0
    stage.launch(WORKER)
    stage.until_ended(job_id)
    assert executed(stage, job_id)["resumed_after"] == PHASES[1]
    attempts = [attempt for _, attempt in attempts_of_phases(stage, job_id)]
    assert attempts == ["0"] * 2 + ["1"] * (len(PHASES) - 2)


def test_a_second_signal_ends_a_worker_at_once_and_its_task_continues_elsewhere(stage: Stage) -> None:
    stage.is_real = True
    _, worker = stage.launch(ORCHESTRATOR, WORKER)
    job_id = stage.submit(single("ledger.phase", "{seconds: 60}", retries=2))
    stage.until(SAVED, 1, job_id)
    worker.terminate()
    until_stopping(worker)  # Two signals at the same moment count as one.
    worker.popen.send_signal(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM
    stage.launch(WORKER)
    stage.until_ended(job_id)
    assert executed(stage, job_id) == {"has_resumed": True}
