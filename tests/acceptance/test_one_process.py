"""All roles in one process on a data folder: after a kill, the next process resumes the job."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ledger
import pytest
from processes import Stage
from promise import assert_promise_kept
from shapes import FAN

from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.migrate import upgrade

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

DONE = "SELECT count(*) >= %s FROM dagapp.dag_node_states WHERE status = 'completed' AND parent_node_id IS NOT NULL"


@pytest.fixture
def data_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    yield folder
    EmbeddedServer.start(folder).release()  # The last killed process has not stopped it.
    shutil.rmtree(folder)


@pytest.fixture
def stage(data_dir: Path, tmp_path: Path, *, with_server: bool) -> Iterator[Stage]:
    """The ledger is made; then nobody holds the server, so that it is the killed process that leaves it behind.

    Of both cases one has processes that load everything themselves.
    """
    with EmbeddedServer.start(data_dir) as server:
        upgrade(server.dsn)
        stage = Stage(server.dsn, tmp_path, in_folder=data_dir, forgetful=False, is_real=with_server)
        stage.hold("total")  # The job, and with it the run and its server, does not end before the kill.
        stage.database.close()
    yield stage
    sys.stderr.write(stage.close())


@pytest.mark.parametrize("with_server", [False, True], ids=["alone", "with its PostgreSQL"])
def test_a_run_killed_during_a_fan_out_is_finished_by_dev(stage: Stage, data_dir: Path, *, with_server: bool) -> None:
    items = ",".join(map(str, range(200)))
    run = stage.start("run", stage.write_file(FAN), "-i", f"items=[{items}]", "--handlers", ledger.__file__)
    stage.await_role(run)
    stage.until(DONE, 70)
    stage.kill(run)
    if with_server:
        os.kill(int((data_dir / "postgres/data/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    [dev] = stage.launch(("dev", "--port", "0", "--handlers", ledger.__file__), workflows_dir="nowhere")
    stage.release()
    stage.until_ended()
    assert_promise_kept(stage.dsn, killed=stage.killed, may_repeat=with_server)
    dev.terminate()
    assert dev.wait() == 0
