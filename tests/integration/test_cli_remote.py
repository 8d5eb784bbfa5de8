from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from command_line import Called, call, write_workflow
from serving import Server, server

from dagmaster.handlers import HandlerContext, Permanent

GREETING = """\
workflow_id: greeting
inputs: {name: {type: string, required: true}, times: {type: integer, default: 1}}
nodes:
  greet: {handler: echo, queue: q, params: {name: "{{ inputs.name }}", times: "{{ inputs.times }}"}, next: spread}
  spread: {type: fan_out, source: [1, 2], task: {handler: echo, queue: q, params: {x: "{{ item }}"}}}
"""
BROKEN = """\
workflow_id: broken
nodes:
  work: {handler: broken, queue: q, retry: {max_attempts: 0}}
"""
WAITING = """\
workflow_id: waiting
nodes:
  work: {handler: echo, queue: nobody}
"""


def broken(ctx: HandlerContext) -> None:
    raise Permanent("no luck")  # without a traceback in the log, which is that of the command too


@pytest.fixture
def running(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    folder = tmp_path / "workflows"
    folder.mkdir()
    for name, text in {"greeting": GREETING, "broken": BROKEN, "waiting": WAITING}.items():
        write_workflow(folder, text, f"{name}.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    with server(dsn, folder, broken=broken) as host:
        yield host


@pytest.fixture
def at_server(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGMASTER_URL", running.url)


def submit(*args: object) -> Called:
    return call("submit", *args)


def test_a_job_is_submitted_and_waited_for(running: Server) -> None:
    done = call("--url", running.url, "submit", "greeting", "-i", "name=Ada", "-i", "times=3", "--poll", "--json")
    assert done.code == 0, done.err
    assert done.json["status"] == "completed"
    assert done.json["result"]["greet"]["echoed_params"] == {"name": "Ada", "times": 3}
    lines = call("submit", "greeting", "-i", "name=Ada", "--poll", "--url", running.url).out.splitlines()
    assert lines[0].isdecimal()
    assert any(line.startswith("spread: completed") for line in lines)


@pytest.mark.usefixtures("at_server")
def test_a_failed_job_ends_with_code_one() -> None:
    done = submit("broken", "--poll")
    assert done.code == 1
    assert "failed: " in done.err
    assert "no luck" in done.err


@pytest.mark.usefixtures("at_server")
def test_what_is_looked_at_over_http_is_what_the_database_says(dsn: str) -> None:
    job_id = submit("greeting", '{"name": "Ada"}', "--poll", "--json").json["job_id"]
    for question in (["show", job_id], ["show", job_id, "--children"], ["timeline", job_id], ["jobs"], ["queues"]):
        over_http, direct = call(*question), call("--database-url", dsn, *question)
        assert (over_http.code, over_http.out, over_http.err) == (0, direct.out, direct.err), question
    command = ["timeline", job_id, "--node", "spread", "--type", "node_completed", "--json"]
    [line] = call(*command).out.splitlines()
    [known] = call("--database-url", dsn, *command).out.splitlines()
    assert orjson.loads(line) == orjson.loads(known)


@pytest.mark.usefixtures("at_server")
def test_a_job_is_named_by_its_first_digits_over_http() -> None:
    first = submit("waiting").out.strip()
    assert call("show", first[:-2], "--json").json["job_id"] == first
    assert call("show", "last:waiting", "--json").json["job_id"] == first
    assert "there is no job 1; `dagmaster jobs` lists them" in call("show", "1").err


@pytest.mark.usefixtures("at_server")
def test_following_ends_with_the_job() -> None:
    job_id = submit("greeting", '{"name": "Ada"}').out.strip()
    assert "the job is completed" in call("timeline", job_id, "--follow").out.splitlines()[-1]


@pytest.mark.usefixtures("at_server")
def test_a_job_is_paused_resumed_and_cancelled(dsn: str) -> None:
    job_id = submit("waiting").out.strip()
    assert call("pause", job_id, "--reason", "later").out == f"Paused job {job_id}\n"
    assert "paused" in call("show", job_id).out
    assert call("resume", job_id).out == f"Resumed job {job_id}\n"
    assert call("--database-url", dsn, "pause", job_id, "--by", "ada").out == f"Paused job {job_id}\n"
    assert "by ada" in call("show", job_id).out
    assert call("--database-url", dsn, "resume", job_id).out == f"Resumed job {job_id}\n"
    assert call("cancel", job_id, "--json").json == {"job_id": job_id, "status": "cancelled", "is_done": True}
    again = call("cancel", job_id)
    assert (again.code, again.err) == (2, f"error: job {job_id} is cancelled and cannot be cancelled\n")


@pytest.mark.usefixtures("at_server")
@pytest.mark.parametrize("directly", [True, False])
def test_a_failed_job_is_tried_again(dsn: str, directly: bool) -> None:
    job_id = submit("broken", "--poll", "--json").json["job_id"]
    where = ["--database-url", dsn] if directly else []
    assert call(*where, "retry", job_id, "nowhere").err == f"error: job {job_id} has no node 'nowhere'\n"
    assert call(*where, "retry", job_id, "work").code == 0
    assert call("timeline", job_id, "--follow").out.count("the job has failed") == 2


@pytest.mark.usefixtures("at_server")
def test_the_server_is_asked_who_is_there() -> None:
    header, orchestrator, worker = call("workers").out.splitlines()
    assert header.split()[:3] == ["ROLE", "ID", "STATUS"]
    assert orchestrator.split()[0::2][:2] == ["orchestrator", "running"]
    assert worker.split()[0::2][:2] == ["worker", "active"]
    listed = [line.split() for line in call("workflows").out.splitlines()]
    assert ["greeting", "1", "4", "name,", "times?", "greeting.yaml"] in listed


@pytest.mark.usefixtures("at_server")
def test_what_is_wrong_is_told_as_without_a_server() -> None:
    refused = submit("greeting", '{"name": "Ada", "tmies": 2}')
    assert (refused.code, refused.err) == (2, "error: input 'tmies' is unknown; did you mean 'times'?\n")
    assert call("show", "12345").err == "error: there is no job 12345; `dagmaster jobs` lists them\n"
    assert "needs a workflow id" in submit("greeting.yaml").err
    assert "--by cannot be used with --url" in call("cancel", submit("waiting").out.strip(), "--by", "me").err
    assert "must be of type integer, not 'x'" in submit("greeting", "-i", "times=x").err


@pytest.mark.parametrize("command", ["jobs", "workers", "queues", "workflows"])
def test_a_server_that_is_not_there_is_wrong_use(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(command, "--url", "http://127.0.0.1:9")
    assert done.code == 2
    assert done.err.startswith("error: http://127.0.0.1:9 cannot be reached")


def test_a_key_is_sent_and_one_on_the_command_line_is_warned_of(running: Server) -> None:
    done = call("jobs", "--url", running.url, "--api-key", "dm_wrong")
    assert (done.code, done.err) == (2, "error: the API key is unknown, revoked or expired\n")
    assert "other users of this machine can see" in " ".join(call("--help").out.replace("│", " ").split())


@pytest.mark.usefixtures("at_server")
def test_the_reason_why_a_job_waits_is_the_same_over_http(dsn: str) -> None:
    job_id = submit("waiting").out.strip()
    while "queue" not in (explanation := call("explain", job_id, "work").out):
        assert "orchestrator" not in explanation
    directly = call("--database-url", dsn, "explain", job_id, "work", "--json").json
    remotely = call("explain", job_id, "work", "--json").json
    assert remotely["sentence"] == directly["sentence"]
    assert (remotely["kind"], "nobody" in remotely["sentence"]) == (directly["kind"], True)


@pytest.mark.parametrize("command", [["doctor"], ["keys", "list"], ["prune", "--days", "1"], ["migrate"]])
def test_what_needs_the_database_does_not_look_for_one_here(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = call("--url", "http://127.0.0.1:1", *command)
    assert said.code == 2
    assert "--database-url" in said.err
    assert list(tmp_path.iterdir()) == []
