"""Spooled reports survive the worker, once."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dagmaster.errors import Misconfigured
from dagmaster.ids import JobId, TaskId
from dagmaster.queues.contract import TaskReport
from dagmaster.worker.spool import Spool, spool_folder


def report(task_id: str = "7_work_0", output: bytes = b'{"n": 1}') -> TaskReport:
    return TaskReport(TaskId(task_id), JobId(7), "work", "completed", output, duration_ms=3)


def failed() -> TaskReport:
    details = {"cpu_seconds": 0.5, "metrics": {"rows": 3}}
    names = ("ValueError", "Exception")
    return TaskReport(TaskId("7_a/../b_1"), JobId(7), "a/../b", "failed", None, "no", True, 2.5, 9, names, details)


def spooled(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def test_reports_of_a_dead_process_are_adopted_unchanged(folder: Path) -> None:
    first = Spool(folder)
    exact = report(output=b'{"big": 123456789012345678901234567890, "small": 1.10}')
    first.add(exact)
    first.add(failed())
    first.close()
    second = Spool(folder)
    assert sorted(second.load(), key=lambda report: report.task_id) == sorted(
        [exact, failed()], key=lambda report: report.task_id
    )
    assert len([path for path in folder.iterdir() if path.is_dir()]) == 1
    second.remove([exact.task_id, failed().task_id, TaskId("unknown")])
    assert (second.load(), spooled(folder)) == ([], [])
    second.close()


def test_reports_of_a_live_process_are_not_adopted(folder: Path) -> None:
    first, second = Spool(folder), Spool(folder)
    first.add(report())
    assert second.load() == []
    assert first.load() == [report()]
    first.close()
    second.close()


def test_reports_of_a_killed_process_remain(folder: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from dagmaster.queues.contract import TaskReport\n"
        "from dagmaster.worker.spool import Spool\n"
        "spool = Spool(Path(sys.argv[1])); spool.add(TaskReport('7_work_0', 7, 'work', 'completed', b'{}'))\n"
        "print('added', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "added\n"
        heir = Spool(folder)
        assert heir.load() == []
        process.send_signal(signal.SIGKILL)
    assert heir.load() == [TaskReport(TaskId("7_work_0"), JobId(7), "work", "completed", b"{}")]
    heir.close()


def test_a_report_added_again_is_stored_once(folder: Path) -> None:
    spool = Spool(folder)
    spool.add(report(output=b"{}"))
    spool.add(report())
    assert spool.load() == [report()]
    spool.close()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"task_id": "7_work_0"}', b'{"output": 7, "error_types": []}']
)
def test_unreadable_files_are_set_aside(folder: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(folder)
    spool.add(report())
    [path] = spooled(folder)
    path.with_name("0.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert spool.load() == [report()]
    assert "moved it to" in caplog.text
    spool.close()
    heir = Spool(folder)
    heir.load()
    assert [path.read_bytes() for path in folder.glob("*/*.unreadable")] == [content]
    heir.close()


def test_a_partial_file_is_not_a_report(folder: Path) -> None:
    spool = Spool(folder)
    spool.add(report())
    [path] = spooled(folder)
    path.with_name("0.new").write_bytes(b'{"task_id"')
    assert spool.load() == [report()]
    spool.close()


def test_a_full_disk_is_logged_once(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    spool = Spool(folder)
    monkeypatch.setattr(os, "fsync", full)
    spool.add(report())
    spool.add(failed())
    assert caplog.text.count("No space left") == 1
    monkeypatch.undo()
    assert spool.load() == []
    spool.close()


def test_an_accepted_report_that_cannot_be_removed_is_sent_again_by_the_next_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(path: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    spool = Spool(folder)
    spool.add(report())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", read_only)
        spool.remove([report().task_id])
    assert "Read-only file system" in caplog.text
    spool.close()
    assert Spool(folder).load() == [report()]


def test_a_folder_that_cannot_be_created_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="DAGMASTER_DATA_DIR"):
        Spool(tmp_path / "file" / "spool")


def test_other_users_cannot_read_the_spool(folder: Path) -> None:
    spool = Spool(folder)
    spool.add(report())
    [path] = spooled(folder)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    spool.close()


def test_each_server_and_key_has_its_own_spool(tmp_path: Path) -> None:
    pairs = [("https://a", "k"), ("https://a", "l"), ("https://b", "k"), ("https://a", None)]
    assert len({spool_folder(tmp_path, *pair) for pair in pairs}) == 4
    assert not any(spool_folder(tmp_path, url, key).name == "k" for url, key in pairs)
