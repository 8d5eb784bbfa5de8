import asyncio
import io
import logging
import sys
from collections.abc import Iterator

import orjson
import pytest

from dagmaster.handlers import Handler, HandlerContext, call
from dagmaster.logs import about, current_request_id, remember, set_up_logs

log = logging.getLogger("dagmaster.tests")


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level


def test_human_readable_lines_have_time_level_and_task(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", "text")
    log.info("hello %s", "you", extra={"task_id": "1_a_0", "job_id": 1})
    log.debug("not this")
    [line] = capsys.readouterr().err.splitlines()
    time, level, message = line.split(maxsplit=2)
    assert time.endswith("Z")
    assert (level, message) == ("INFO", "dagmaster.tests: hello you (task_id=1_a_0)")


def test_machine_readable_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("warning", "json")
    try:
        raise ValueError("oops")
    except ValueError:
        log.exception("it failed", extra={"job_id": 2**60})
    line = orjson.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"]) == ("error", "dagmaster.tests", "it failed")
    assert line["job_id"] == str(2**60)
    assert "ValueError: oops" in line["exception"]


def test_lines_go_to_a_replaced_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_up_logs("info", "text")
    other = io.StringIO()
    monkeypatch.setattr(sys, "stderr", other)
    log.info("here")
    assert "here" in other.getvalue()
    assert capsys.readouterr().err == ""


async def test_a_traceback_starts_in_the_handler(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(ctx: HandlerContext) -> None:
        raise ValueError("oops")

    set_up_logs("info", "text")
    context = HandlerContext(task_id="1_a_0", job_id=1, node_id="a", handler="broken")
    await call(Handler("broken", broken), context, executor=None)
    printed = capsys.readouterr().err
    assert "ValueError: oops" in printed
    assert "test_logs.py" in printed
    assert "calling.py" not in printed


def test_every_line_carries_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", "json")
    with about(request_id="r"):
        with about(job_id=7, node_id="a", task_id="7_a_0"):
            log.info("inside")
        log.info("outside", extra={"job_id": 8})
    log.info("elsewhere")
    inside, outside, elsewhere = map(orjson.loads, capsys.readouterr().err.splitlines())
    ids = ("request_id", "job_id", "node_id", "task_id")
    assert [inside.get(name) for name in ids] == ["r", "7", "a", "7_a_0"]
    assert [outside.get(name) for name in ids] == ["r", "8", None, None]
    assert [elsewhere.get(name) for name in ids] == [None] * 4


def test_human_readable_lines_show_the_most_precise_id(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", "text")
    with about(request_id="r"):
        log.info("one")
        with about(job_id=7):
            log.info("two\nthree")
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.endswith("one (request_id=r)")
    assert second.endswith("two (job_id=7)")
    assert third == "three"


async def test_the_log_context_is_task_local() -> None:
    async def work(name: str) -> str | None:
        remember(request_id=name)
        await asyncio.sleep(0)
        return current_request_id()

    assert await asyncio.gather(work("a"), work("b")) == ["a", "b"]
    assert current_request_id() is None


async def test_a_line_from_a_handlers_thread_carries_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    def talk(ctx: HandlerContext) -> None:
        logging.getLogger("some.library").warning("hello")

    set_up_logs("info", "json")
    with about(job_id=1, node_id="a", task_id="1_a_0"):
        await call(
            Handler("talk", talk), HandlerContext(task_id="x", job_id=0, node_id="b", handler="talk"), executor=None
        )
    line = orjson.loads(capsys.readouterr().err)
    assert (line["message"], line["task_id"], line["job_id"]) == ("hello", "1_a_0", "1")


@pytest.mark.parametrize("style", ["text", "json"])
def test_secrets_are_redacted_in_messages_and_exceptions(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", style)
    try:
        raise ValueError("cannot connect to postgresql://ada:hunter2@db/x")
    except ValueError:
        log.exception("password=%s", "hunter2")
    printed = capsys.readouterr().err
    assert "hunter2" not in printed
    assert "password=***" in printed
    assert "ada:***@db" in printed
