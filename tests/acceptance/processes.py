"""Real processes: started through the command line, observed through the database, ended by signals."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ledger
import psutil
import psycopg
from fork_server import IS_REAL, PROGRAMS, Forked
from psycopg.rows import dict_row
from shapes import Shape

from dagmaster.model.inputs import check_inputs
from dagmaster.store import submission
from dagmaster.store.connect import opened
from dagmaster.store.notifications import MAIL

DAGMASTER = str(PROGRAMS / "dagmaster")
PATIENCE_SECONDS = 90.0
POLL_SECONDS = 0.02
FOREIGN = re.compile(r"DAGMASTER_|POSTGRES_|PG[A-Z]+$|DATABASE_URL$|RUN_MODE$|WORKER_|LOG_|DAG_|ORCHESTRATOR_|ORPHAN_")
# The thresholds are long: dead local processes are detected without them, and slow ones are not lost.
SETTINGS = {
    "poll_interval_seconds": 0.2,
    "heartbeat_interval_seconds": 0.3,
    "orphan_scan_interval_seconds": 0.5,
    "orphan_threshold_seconds": 60,
    "worker_heartbeat_interval_seconds": 0.3,
    "worker_lost_after_seconds": 60,
    "worker_concurrency": 8,
    "worker_queue": "work",
}
ORCHESTRATOR = ("orchestrator",)
BOTH = ("orchestrator", "--with-worker", "--handlers", ledger.__file__)
WORKER = ("worker", "--handlers", ledger.__file__)

Row = dict[str, Any]


class Process:
    """One run of the command line. `should_live` is true until the test ends it."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        number: int,
        *,
        is_real: bool,
        through: Sequence[str] = (),
    ) -> None:
        self.arguments = tuple(arguments)
        self.should_live = True
        self.log = folder / f"{number}-{arguments[0]}.log"
        self.out = self.log.with_suffix(".out")
        with self.log.open("wb") as log, self.out.open("wb") as out:
            self.popen: subprocess.Popen[bytes] | Forked
            if is_real:
                self.popen = subprocess.Popen(
                    [*through, DAGMASTER, *arguments],
                    cwd=folder,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    start_new_session=True,
                )
            else:
                self.popen = Forked(["dagmaster", *arguments], folder, environment, out, log)
        self.pid = self.popen.pid

    def kill(self) -> None:
        self.should_live = False
        self.popen.kill()
        self.popen.wait()

    def terminate(self) -> None:
        self.should_live = False
        self.popen.terminate()

    def stop(self) -> None:
        """It stands still when this returns; the fork server sends signals when it gets to it."""
        self.popen.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE_SECONDS
        with suppress(psutil.NoSuchProcess):  # It has just ended.
            while not self.has_ended() and psutil.Process(self.pid).status() != psutil.STATUS_STOPPED:
                assert time.monotonic() < deadline, "it does not stop"
                time.sleep(0.001)

    def go_on(self) -> None:
        self.popen.send_signal(signal.SIGCONT)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Return its exit code."""
        self.should_live = False
        return self.popen.wait(seconds)

    def has_ended(self) -> bool:
        return self.popen.poll() is not None

    def last_words(self, lines: int = 25) -> str:
        words = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"--- {self.pid} {' '.join(self.arguments)}: {self.popen.poll()}", *words])


class Database:
    """Queries to PostgreSQL, which may be restarted between them."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: psycopg.Connection[Row] | None = None

    def rows(self, query: str, *values: Any) -> list[Row]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if self._conn is None:
                    self._conn = psycopg.connect(self._dsn, autocommit=True, row_factory=dict_row)
                cursor = self._conn.execute(query, values or None)
                return cursor.fetchall() if cursor.description else []
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                self.close()
                time.sleep(POLL_SECONDS)

    def row(self, query: str, *values: Any) -> Row:
        [row] = self.rows(query, *values)
        return row

    def value(self, query: str, *values: Any) -> Any:
        [value] = self.row(query, *values).values()
        return value

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def new_job(shape: Shape, inputs: Mapping[str, Any], **options: Any) -> submission.NewJob:
    return submission.NewJob(shape.graph, check_inputs(shape.graph.workflow, inputs), **options)


class Stage:
    """Processes on one database, with short intervals. Killed ones are recorded, and all are ended."""

    def __init__(
        self, dsn: str, folder: Path, *, in_folder: Path | None = None, forgetful: bool = True, is_real: bool = False
    ) -> None:
        """`in_folder` is the data folder when no server is named. A `forgetful` ledger is quick, and loses its last
        rows when PostgreSQL crashes. Processes that are not real are forks of one that has loaded everything."""
        self.dsn = dsn
        self.database = Database(dsn)
        self.processes: list[Process] = []
        self.killed: set[int] = set()
        self.is_real = is_real or IS_REAL
        self._folder = folder
        options = quote("-c synchronous_commit=off")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not FOREIGN.match(name)},
            "DAGMASTER_LOG_DIR": str(folder / "logs"),
            ledger.LEDGER: f"{dsn}&options={options}" if forgetful else dsn,
            **({"DAGMASTER_DATA_DIR": str(in_folder)} if in_folder else {"DATABASE_URL": dsn}),
        }
        self.database.rows(ledger.MAKE_LEDGER)

    # Processes.

    def start(self, *arguments: str, through: Sequence[str] = (), **settings: Any) -> Process:
        """Start any command without waiting. `through` is a command that executes it, as env does; then it is real."""
        chosen = {f"DAGMASTER_{name.upper()}": str(value) for name, value in {**SETTINGS, **settings}.items()}
        process = Process(
            arguments,
            self.environment | chosen,
            self._folder,
            len(self.processes),
            is_real=self.is_real or bool(through),
            through=through,
        )
        self.processes.append(process)
        return process

    def launch(self, *roles: Sequence[str], **settings: Any) -> list[Process]:
        """Start these concurrently; they are registered when this returns."""
        started = [self.start(*role, **settings) for role in roles]
        for process in started:
            self.await_role(process)
        return started

    def await_role(self, process: Process) -> None:
        """Wait until a worker is registered as such; an orchestrator with a worker is registered as both."""
        command, *options = process.arguments
        if command != "worker":
            self.until("SELECT count(*) > 0 FROM dagapp.dag_orchestrators WHERE pid = %s", process.pid)
        if command in ("worker", "dev", "run") or "--with-worker" in options:
            self.until("SELECT count(*) > 0 FROM dagapp.dag_workers WHERE pid = %s", process.pid)

    def kill(self, process: Process) -> None:
        process.kill()
        self.killed.add(process.pid)

    def owner_of(self, job_id: int) -> Process:
        pid = self.database.value(
            "SELECT pid FROM dagapp.dag_orchestrators o JOIN dagapp.dag_jobs j ON j.owner_id = o.orchestrator_id "
            "WHERE j.job_id = %s",
            job_id,
        )
        return next(process for process in self.processes if process.pid == pid)

    def close(self) -> str:
        """End all running processes; return their output."""
        for process in self.processes:
            process.kill()
        self.database.close()
        return "\n".join(process.last_words() for process in self.processes)

    # Jobs.

    def submit(self, shape: Shape, **inputs: Any) -> int:
        [job_id] = self.submit_all([(shape, inputs)])
        return job_id

    def submit_all(self, submissions: Sequence[tuple[Shape, Mapping[str, Any]]]) -> list[int]:
        """One transaction each, so that they are distributed over the orchestrators."""

        async def run() -> list[int]:
            async with opened(self.dsn, application="acceptance") as conn:
                submitted_jobs = [
                    await submission.submit(conn, new_job(*arguments), threshold_seconds=60)
                    for arguments in submissions
                ]
                await conn.execute(f"NOTIFY {MAIL}")
            return [submitted.job_id for submitted in submitted_jobs]

        return asyncio.run(run())

    def write_file(self, shape: Shape) -> str:
        path = self._folder / f"{shape.workflow_id}.yaml"
        path.write_text(shape.text, encoding="utf-8")
        return str(path)

    def hold(self, *node_ids: str) -> None:
        """Tasks of these nodes, or phases of these names, start but do not end before the test has acted.

        A worker has one connection to the ledger: while a task is held, its other tasks wait to write.
        """
        self.database.rows(ledger.MAKE_HOLDS)
        self.database.rows("INSERT INTO acceptance_holds SELECT unnest(%s::text[])", list(node_ids))

    def release(self) -> None:
        self.database.rows("DELETE FROM acceptance_holds")

    # Waiting.

    def until(self, question: str, *values: Any, seconds: float = PATIENCE_SECONDS) -> float:
        """Repeat the query until all its columns are true; return how long it took."""
        began = time.monotonic()
        while not all(self.database.row(question, *values).values()):
            waited = time.monotonic() - began
            self._assert_alive()
            assert waited < seconds, f"waited {waited:.0f} s in vain for {question} {values}: {self.summary()}"
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began

    def until_ended(self, *job_ids: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for these jobs, or for all."""
        live = "SELECT count(*) = 0 FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')"
        if job_ids:
            self.until(f"{live} AND job_id = ANY(%s)", list(job_ids), seconds=seconds)
        else:
            self.until(live, seconds=seconds)

    def _assert_alive(self) -> None:
        """Fail with the output of a process that died, rather than with a timeout."""
        for process in self.processes:
            assert not (process.should_live and process.has_ended()), f"it died:\n{process.last_words()}"

    def summary(self) -> list[Row]:
        return self.database.rows(
            "SELECT j.job_id, j.workflow_id, j.status, j.owner_id, array_agg(DISTINCT n.status::text) AS nodes "
            "FROM dagapp.dag_jobs j LEFT JOIN dagapp.dag_node_states n USING (job_id) "
            "WHERE j.status IN ('pending', 'running') GROUP BY j.job_id LIMIT 5"
        )
