import io
import logging
import sys
from collections.abc import Iterator

import orjson
import pytest

from dagmaster.handlers import Handler, HandlerContext, call
from dagmaster.logs import set_up_logs

log = logging.getLogger("dagmaster.tests")


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level


def test_lines_for_people_have_time_level_and_task(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", "text")
    log.info("hello %s", "you", extra={"task_id": "1_a_0", "job_id": 1})
    log.debug("not this")
    [line] = capsys.readouterr().err.splitlines()
    time, level, rest = line.split(maxsplit=2)
    assert time.endswith("Z")
    assert (level, rest) == ("INFO", "dagmaster.tests: hello you (task_id=1_a_0)")


def test_lines_for_machines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("warning", "json")
    try:
        raise ValueError("oops")
    except ValueError:
        log.exception("it failed", extra={"job_id": 2**60})
    line = orjson.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"]) == ("error", "dagmaster.tests", "it failed")
    assert line["job_id"] == str(2**60)
    assert "ValueError: oops" in line["exception"]


def test_lines_follow_a_stderr_that_is_replaced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_logs("info", "text")
    other = io.StringIO()
    monkeypatch.setattr(sys, "stderr", other)
    log.info("here")
    assert "here" in other.getvalue()
    assert capsys.readouterr().err == ""


async def test_a_traceback_begins_in_the_handler(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(ctx: HandlerContext) -> None:
        raise ValueError("oops")

    set_up_logs("info", "text")
    context = HandlerContext(task_id="1_a_0", job_id=1, node_id="a", handler="broken")
    await call(Handler("broken", broken), context, executor=None)
    shown = capsys.readouterr().err
    assert "ValueError: oops" in shown
    assert "test_logs.py" in shown
    assert "calling.py" not in shown
