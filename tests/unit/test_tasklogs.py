import asyncio
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from s3_server import run_s3

from dagmaster.errors import Misconfigured, Unavailable
from dagmaster.ids import JobId, NodeId
from dagmaster.model.states import NodeStatus
from dagmaster.settings import Settings, load_settings
from dagmaster.tasklogs import LogUnavailable, TaskLogs, logs_dir, open_task_logs
from dagmaster.tasklogs.files import MAX_NAME_BYTES, FileLogs, safe_name
from dagmaster.tasklogs.objects import ObjectLogs
from dagmaster.tasklogs.reader import LogSelection, NodeLog, NodeState, why_none

TASK = "247845805292758904_work_0"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of a local S3 server with a bucket."""
    with run_s3("logs") as address:
        yield address


@pytest.fixture(params=["files", "local objects", "s3"])
def logs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskLogs:
    if request.param == "files":
        return FileLogs(tmp_path / "logs")
    if request.param == "local objects":
        return ObjectLogs(f"file://{tmp_path}/logs")
    for name, value in {
        "AWS_ENDPOINT_URL": request.getfixturevalue("s3"),
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return ObjectLogs(f"s3://logs/{tmp_path.name}")


async def test_appended_text_is_read(logs: TaskLogs) -> None:
    assert (await logs.size(TASK), await logs.read(TASK)) == (None, b"")
    await logs.append(TASK, b"first\n")
    await logs.append(TASK, "zweite Zeile: ä\n".encode())
    content = "first\nzweite Zeile: ä\n".encode()
    assert await logs.read(TASK) == content
    assert await logs.size(TASK) == len(content)
    assert await logs.read(TASK, 3, 6) == content[3:9]
    assert await logs.read(TASK, 6) == content[6:]
    assert await logs.read(TASK, len(content)) == b""
    assert TASK in logs.path_of(TASK)


async def test_concurrent_tasks_have_separate_logs(logs: TaskLogs) -> None:
    async def write(number: int) -> None:
        for line in range(5):
            await logs.append(f"1_node{number}_0", f"{number} {line}\n".encode())

    await asyncio.gather(*map(write, range(8)))
    for number in range(8):
        assert await logs.read(f"1_node{number}_0") == "".join(f"{number} {line}\n" for line in range(5)).encode()


async def test_a_log_continues_where_another_process_ended(logs: TaskLogs, request: pytest.FixtureRequest) -> None:
    await logs.append(TASK, b"one ")
    await logs.close()
    await logs.append(TASK, b"two")
    assert await logs.read(TASK) == b"one two"


async def test_logs_can_be_removed_by_task_and_by_job(logs: TaskLogs) -> None:
    tasks = ["1_a_0", "1_a_1", "1_b_0", "12_a_0", "2_1_0"]
    for task_id in tasks:
        await logs.append(task_id, b"x")
    await logs.remove(["1_a_0", "7_none_0"])
    assert [await logs.size(task_id) for task_id in tasks] == [None, 1, 1, 1, 1]
    await logs.remove_jobs([JobId(1), JobId(99)])
    assert [await logs.size(task_id) for task_id in tasks] == [None, None, None, 1, 1]


# Files


async def test_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    logs = FileLogs(tmp_path / "new" / "logs")
    await logs.append(TASK, b"x")
    path = Path(logs.path_of(TASK))
    assert path == tmp_path / "new" / "logs" / f"{TASK}.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("task_id", ["../../etc/passwd", "1_a/b_0", "1_a\0_0", "..", ".", "1_ä_0", "1_" + "x" * 500])
def test_no_id_leads_outside_the_folder(task_id: str) -> None:
    name = safe_name(task_id)
    assert not {"/", "\0"} & set(name)
    assert ".." not in name and not name.startswith(".")
    assert len(name.encode()) <= MAX_NAME_BYTES


def test_workflow_ids_are_kept_and_stay_distinct() -> None:
    assert safe_name("247845805292758904_crunch__17_2") == "247845805292758904_crunch__17_2"
    odd = ["1_a/b", "1_a%2Fb", "1_a b", "1_a+b", "1_" + "x" * 500, "1_" + "x" * 501, "..", "%2E%2E"]
    assert len({safe_name(task_id) for task_id in odd}) == len(odd)


async def test_a_failed_write_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logs = FileLogs(tmp_path / "file" / "logs")
    with pytest.raises(LogUnavailable, match=r"cannot be written in .*DAGMASTER_LOG_DIR"):
        await logs.append(TASK, b"x")
    with pytest.raises(Unavailable):
        await logs.size(TASK)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
async def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    (tmp_path / f"{TASK}.log").symlink_to("/dev/full")
    with pytest.raises(LogUnavailable, match="No space left"):
        await FileLogs(tmp_path).append(TASK, b"x")


# Settings


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DAGMASTER_LOG_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("unset")
def test_the_embedded_servers_logs_are_next_to_its_data() -> None:
    assert logs_dir(load_settings(data_dir="here")) == Path("here/logs")
    assert logs_dir(load_settings(data_dir="here", log_dir="there")) == Path("there")


def test_a_folder_that_cannot_be_created_is_replaced_by_the_users_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    def chosen(log_dir: Path) -> Path:
        options_given: dict[str, Any] = {"log_dir": log_dir, "database_url": SecretStr("postgresql://server/db")}
        return logs_dir(Settings.model_construct({"database_url"}, **options_given))

    assert chosen(tmp_path / "var" / "log") == tmp_path / "var" / "log"
    (tmp_path / "file").write_text("")
    assert chosen(tmp_path / "file" / "log") == tmp_path / ".dagmaster" / "logs"


def test_the_settings_select_files_or_objects(tmp_path: Path) -> None:
    assert isinstance(open_task_logs(load_settings(log_dir=tmp_path)), FileLogs)
    assert isinstance(open_task_logs(load_settings(log_url=f"file://{tmp_path}/logs")), ObjectLogs)
    with pytest.raises(Misconfigured, match="DAGMASTER_LOG_URL should look like s3://"):
        open_task_logs(load_settings(log_url="foo://bar"))
    with pytest.raises(Misconfigured, match="DAGMASTER_LOG_URL should look like s3://"):
        open_task_logs(load_settings(log_url="bucket"))


def test_without_the_library_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Misconfigured, match=r"pip install 'dagmaster\[objects\]'"):
        ObjectLogs("s3://bucket")


async def test_a_storage_that_does_not_respond_is_reported(tmp_path: Path) -> None:
    logs = ObjectLogs(f"file://{tmp_path}/logs")
    (tmp_path / "logs" / "1").write_text("in the way")
    with pytest.raises(LogUnavailable, match=r"cannot be read in file://.*DAGMASTER_LOG_URL"):
        await logs.append("1_a_0", b"x")


# Reading


@pytest.fixture
async def node(tmp_path: Path) -> NodeLog:
    return NodeLog(FileLogs(tmp_path), JobId(1), NodeId("work"))


@pytest.mark.parametrize("ending", [b"\n", b""])
@pytest.mark.parametrize("lines", [0, 1, 2, 3, 99])
async def test_the_tail_starts_with_a_whole_line(node: NodeLog, lines: int, ending: bytes) -> None:
    written = b"a\nbb\nccc" + ending
    await node.logs.append("1_work_0", written)
    expected = b"".join(written.splitlines(keepends=True)[-lines:] if lines else [])
    assert written[await node.tail(1, lines) :] == expected


async def test_the_tail_of_a_long_log_is_read_from_its_end(node: NodeLog) -> None:
    written = b"".join(f"line {number:06d} {'.' * 60}\n".encode() for number in range(5000))
    await node.logs.append("1_work_0", written)
    for lines in (1, 1000, 3000, 4999, 5000, 6000):
        start = await node.tail(1, lines)
        assert written[start:].count(b"\n") == min(lines, 5000)
    assert await node.tail(2, 10) == 0


async def test_following_continues_with_the_next_attempt(node: NodeLog) -> None:
    running, failed = NodeState(NodeStatus.RUNNING, 1), NodeState(NodeStatus.FAILED, 2)
    states = iter([running, NodeState(NodeStatus.RUNNING, 2), failed])
    await node.logs.append("1_work_0", b"one ")

    async def look() -> NodeState:
        state = next(states)
        if state is not running:
            await node.logs.append(f"1_work_{state.attempt - 2}", b"more ")
        return state

    await node.logs.append("1_work_1", b"two")
    assert [piece async for piece in node.follow(1, 0, look)] == [b"one ", b"more ", b"two"]


async def test_following_one_attempt_ends_with_it(node: NodeLog) -> None:
    async def look() -> NodeState:
        return NodeState(NodeStatus.RUNNING, 2)

    await node.logs.append("1_work_0", b"one")
    await node.logs.append("1_work_1", b"two")
    assert [piece async for piece in node.follow(1, 1, look, goes_on=False)] == [b"ne"]


async def test_following_ends_when_the_nodes_state_is_unknown(node: NodeLog) -> None:
    async def look() -> None:
        return None

    await node.logs.append("1_work_0", b"one")
    assert [piece async for piece in node.follow(1, 0, look)] == []


@pytest.mark.parametrize(
    ("selection", "state", "is_found"),
    [
        (LogSelection(), NodeState(NodeStatus.RUNNING, 1), False),
        (LogSelection(follow=True), NodeState(NodeStatus.RUNNING, 1), True),
        (LogSelection(follow=True), NodeState(NodeStatus.READY, 2), True),
        (LogSelection(1, follow=True), NodeState(NodeStatus.READY, 2), False),
        (LogSelection(follow=True), NodeState(NodeStatus.COMPLETED, 1), False),
    ],
)
async def test_a_log_that_does_not_exist_yet_can_be_followed(
    node: NodeLog, selection: LogSelection, state: NodeState, is_found: bool
) -> None:
    assert (await node.find(selection, state) is not None) is is_found


@pytest.mark.parametrize(
    ("state", "newest"),
    [
        (NodeState(NodeStatus.PENDING, 1), 1),
        (NodeState(NodeStatus.RUNNING, 2), 2),
        (NodeState(NodeStatus.READY, 2), 1),
        (NodeState(NodeStatus.FAILED, 3), 3),
    ],
)
def test_the_newest_attempt_is_the_last_that_started(state: NodeState, newest: int) -> None:
    assert state.newest_begun == newest


@pytest.mark.parametrize(
    ("attempt", "state", "place", "reason"),
    [
        (1, NodeState(NodeStatus.DISPATCHED, 1), None, "attempt 1 of node 'work' has not started"),
        (1, NodeState(NodeStatus.RUNNING, 1), None, "attempt 1 of node 'work' has written nothing yet"),
        (1, NodeState(NodeStatus.RUNNING, 2), None, "attempt 1 of node 'work' has written nothing"),
        (3, NodeState(NodeStatus.RUNNING, 2), None, "attempt 3 of node 'work' has not started"),
        (3, NodeState(NodeStatus.COMPLETED, 2), None, "node 'work' has ended with attempt 2"),
        (1, NodeState(NodeStatus.SKIPPED, 1), None, "node 'work' was skipped; it has no log"),
        (
            1,
            NodeState(NodeStatus.COMPLETED, 1),
            {"log_path": "/logs/x.log", "hostname": "host7"},
            "the log of attempt 1 of node 'work' is /logs/x.log on host7; it cannot be read from here",
        ),
    ],
)
def test_a_missing_log_is_explained(
    node: NodeLog, attempt: int, state: NodeState, place: dict[str, str] | None, reason: str
) -> None:
    assert why_none(node, LogSelection(attempt), state, place) == reason


async def test_a_piece_whose_response_was_lost_is_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = ObjectLogs(f"file://{tmp_path}/logs")
    await logs.append(TASK, b"first\n")
    put = logs._obstore.put_async

    async def lose_response(*args: Any) -> None:
        await put(*args)
        raise OSError("connection reset")

    with monkeypatch.context() as patch, pytest.raises(LogUnavailable, match="connection reset"):
        patch.setattr(logs._obstore, "put_async", lose_response)
        await logs.append(TASK, b"second\n")
    await logs.append(TASK, b"second\n")
    await logs.append(TASK, b"third\n")
    assert await logs.read(TASK) == b"first\nsecond\nthird\n"
