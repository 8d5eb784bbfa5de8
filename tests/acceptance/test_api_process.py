"""The HTTP API as a process: start, restart and stop."""

import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from processes import ORCHESTRATOR, PATIENCE_SECONDS, POLL_SECONDS, WORKER, Process, Stage

from dagmaster import Client

pytestmark = pytest.mark.acceptance

SLOW = """
workflow_id: slow
nodes:
  first: {type: task, handler: sleep, params: {seconds: 1}}
  second: {type: task, handler: sleep, params: {seconds: 1}, depends_on: [first]}
"""


@pytest.fixture
def workflows(tmp_path: Path) -> Path:
    folder = tmp_path / "workflows"
    folder.mkdir()
    (folder / "slow.yaml").write_text(SLOW)
    return folder


def first_line(process: Process, word: str) -> str:
    """Its first line that contains this word."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for line in process.out.read_text().splitlines():
            if word in line:
                return line
        assert not process.has_ended(), process.last_words()
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"it never said {word!r}: {process.last_words()}")


def serve(stage: Stage, workflows: Path, *options: str, port: str = "0") -> tuple[Process, str]:
    process = stage.start("api", "--port", port, *options, workflows_dir=workflows)
    return process, first_line(process, "serving").split()[-1]


def test_a_port_in_use_is_reported_before_anything_starts(stage: Stage, workflows: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = stage.start("api", "--port", port, workflows_dir=workflows)
        assert process.wait() == 2
    assert f"cannot listen on 127.0.0.1:{port}" in process.log.read_text()
    assert "--port" in process.log.read_text()


def test_without_keys_the_server_refuses_a_public_address(stage: Stage, workflows: Path) -> None:
    process = stage.start("api", "--host", "0.0.0.0", "--port", "0", workflows_dir=workflows)
    assert process.wait() == 2
    assert "dagmaster keys create" in process.log.read_text()


def test_a_job_runs_through_api_orchestrator_and_worker_processes(stage: Stage, workflows: Path) -> None:
    stage.launch(ORCHESTRATOR, WORKER)
    process, url = serve(stage, workflows)
    with Client(url) as client:
        job = client.submit("slow")
        types = [event.event_type for event in client.stream(job.job_id)]
        assert (types[0], types[-1]) == ("job_created", "job_completed")
        assert client.job(job.job_id).summary.completed == 4
    process.terminate()
    assert process.wait() == 0


def test_open_streams_do_not_delay_the_stop(stage: Stage, workflows: Path) -> None:
    stage.is_real = True
    process, url = serve(stage, workflows)
    job = httpx.post(f"{url}/api/v1/jobs", json={"workflow_id": "slow"}, timeout=90).json()
    with httpx.stream("GET", f"{url}/api/v1/jobs/{job['job_id']}/stream", timeout=90) as stream:
        lines = stream.iter_lines()
        while not next(lines).startswith("data:"):
            pass
        began = time.monotonic()
        process.terminate()
        assert process.wait() == 0
        assert time.monotonic() - began < 25


def test_a_stream_resumes_without_a_gap_after_a_restart(stage: Stage, workflows: Path, port: str) -> None:
    stage.launch(ORCHESTRATOR, WORKER)
    process, url = serve(stage, workflows, port=port)
    with Client(url) as client:
        job = client.submit("slow")
        ids: list[int] = []
        is_watched = threading.Event()

        def watch() -> None:
            for event in client.stream(job.job_id):
                ids.append(int(event.event_id))
                is_watched.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert is_watched.wait(PATIENCE_SECONDS)
        stage.kill(process)
        serve(stage, workflows, port=port)
        watcher.join(PATIENCE_SECONDS)
    query = "SELECT event_id FROM dagapp.dag_job_events WHERE job_id = %s ORDER BY 1"
    expected = stage.database.rows(query, int(job.job_id))
    assert ids == [row["event_id"] for row in expected]
