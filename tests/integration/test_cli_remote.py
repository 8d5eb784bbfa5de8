from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from command_line import Called, call, write_workflow
from serving import Server, server

from dagmaster import Client
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
# The first tile succeeds, the second fails, the others never start.
TILES = """\
workflow_id: tiles
nodes:
  tiles:
    type: fan_out
    source:
      - {fails: false, bbox: [5, 50, 6, 51]}
      - {fails: true, bbox: [6, 50, 7, 51]}
      - {fails: false, bbox: [5, 49, 6, 50]}
      - {fails: false, bbox: [179, 49, -179, 50]}
    max_parallel: 1
    task: {handler: tile, queue: q, params: {fails: "{{ item.fails }}"}, retry: {max_attempts: 0}}
    next: merge
  merge: {type: fan_in}
"""
WAITING = """\
workflow_id: waiting
nodes:
  work: {handler: echo, queue: nobody}
"""


def broken(ctx: HandlerContext) -> None:
    raise Permanent("no luck")  # Without a traceback in the log, which goes to the command's stderr.


def tile(ctx: HandlerContext) -> None:
    if ctx.params["fails"] and ctx.retry_count == 0:
        raise Permanent("no image")


@pytest.fixture
def running(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    folder = tmp_path / "workflows"
    folder.mkdir()
    for name, text in {"greeting": GREETING, "broken": BROKEN, "tiles": TILES, "waiting": WAITING}.items():
        write_workflow(folder, text, f"{name}.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    with server(dsn, folder, broken=broken, tile=tile) as host:
        yield host


@pytest.fixture
def at_server(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGMASTER_URL", running.url)


def submit(*args: object) -> Called:
    return call("submit", *args)


def test_submit_waits_for_the_job(running: Server) -> None:
    done = call("--url", running.url, "submit", "greeting", "-i", "name=Ada", "-i", "times=3", "--poll", "--json")
    assert done.code == 0, done.err
    assert done.json["status"] == "completed"
    assert done.json["result"]["greet"]["echoed_params"] == {"name": "Ada", "times": 3}
    lines = call("submit", "greeting", "-i", "name=Ada", "--poll", "--url", running.url).out.splitlines()
    assert lines[0].isdecimal()
    assert any(line.startswith("spread: completed") for line in lines)


@pytest.mark.usefixtures("at_server")
def test_a_failed_job_exits_with_code_1() -> None:
    done = submit("broken", "--poll")
    assert done.code == 1
    assert "failed: " in done.err
    assert "no luck" in done.err


@pytest.mark.usefixtures("at_server")
def test_read_commands_print_the_same_over_http_as_from_the_database(dsn: str) -> None:
    job_id = submit("greeting", '{"name": "Ada"}', "--poll", "--json").json["job_id"]
    for question in (["show", job_id], ["show", job_id, "--children"], ["timeline", job_id], ["jobs"], ["queues"]):
        over_http, direct = call(*question), call("--database-url", dsn, *question)
        assert (over_http.code, over_http.out, over_http.err) == (0, direct.out, direct.err), question
    command = ["timeline", job_id, "--node", "spread", "--type", "node_completed", "--json"]
    [line] = call(*command).out.splitlines()
    [known] = call("--database-url", dsn, *command).out.splitlines()
    assert orjson.loads(line) == orjson.loads(known)


@pytest.mark.usefixtures("at_server")
def test_a_job_can_be_addressed_by_an_id_prefix_over_http() -> None:
    first = submit("waiting").out.strip()
    assert call("show", first[:-2], "--json").json["job_id"] == first
    assert call("show", "last:waiting", "--json").json["job_id"] == first
    assert "there is no job 1; `dagmaster jobs` lists them" in call("show", "1").err


@pytest.mark.usefixtures("at_server")
def test_following_stops_when_the_job_ends() -> None:
    job_id = submit("greeting", '{"name": "Ada"}').out.strip()
    assert "the job is completed" in call("timeline", job_id, "--follow").out.splitlines()[-1]


@pytest.mark.usefixtures("at_server")
def test_a_job_can_be_paused_resumed_and_cancelled(dsn: str) -> None:
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
def test_a_failed_job_can_be_retried(dsn: str, directly: bool) -> None:
    job_id = submit("broken", "--poll", "--json").json["job_id"]
    where = ["--database-url", dsn] if directly else []
    assert call(*where, "retry", job_id, "nowhere").err == f"error: job {job_id} has no node 'nowhere'\n"
    assert call(*where, "retry", job_id, "work").code == 0
    assert call("timeline", job_id, "--follow").out.count("the job has failed") == 2


@pytest.mark.usefixtures("at_server")
def test_only_tiles_that_intersect_a_box_are_retried(dsn: str, running: Server) -> None:
    job_id = submit("tiles", "--poll", "--json").json["job_id"]
    far = call("retry", job_id, "--bbox", "100,0,101,1")
    assert far.err == (
        "error: none of the 3 unfinished nodes with a location touches the bbox; they lie within 5,49,181,51\n"
    )
    assert "is not west,south,east,north in degrees" in call("retry", job_id, "--bbox", "5,50").err
    assert "a node or a bbox, not both" in call("retry", job_id, "tiles__1", "--bbox", "5,49,6,50").err
    printed = f"Retrying 1 of 3 unfinished nodes of job {job_id}\n"
    assert call("retry", job_id, "--bbox=-180,49.5,-179.5,49.6").out == printed
    assert "node tiles__1 failed: no image" in call("timeline", job_id, "--follow").out.splitlines()[-1]
    assert statuses(job_id) == {
        "tiles__0": "completed",
        "tiles__1": "failed",
        "tiles__2": "skipped",
        "tiles__3": "completed",
    }
    with Client(running.url) as client:
        steered = client.retry(job_id, bbox=[6.5, 50.5, 6.6, 50.6])
        assert (steered.selected_nodes, steered.unfinished_nodes) == (1, 2)
    assert "node tiles__2 was not retried" in call("timeline", job_id, "--follow").out.splitlines()[-1]
    direct = ["--database-url", dsn, "retry", job_id, "--json", "--bbox=0,0,5,49"]
    assert call(*direct).json["selected_nodes"] == 1
    assert "the job is completed" in call("timeline", job_id, "--follow").out.splitlines()[-1]
    assert set(statuses(job_id).values()) == {"completed"}
    assert "only a failed job can be retried" in call("retry", job_id, "--bbox", "0,0,9,90").err


def statuses(job_id: str) -> dict[str, str]:
    nodes = call("show", job_id, "--children", "--json").json["nodes"]
    return {node["node_id"]: node["status"] for node in nodes if node["node_id"].startswith("tiles__")}


@pytest.mark.usefixtures("at_server")
def test_a_job_without_bounding_boxes_cannot_be_retried_by_box() -> None:
    job_id = submit("broken", "--poll", "--json").json["job_id"]
    assert "none of the 1 unfinished nodes" in (refused := call("retry", job_id, "--bbox", "0,0,1,1").err)
    assert "retry the job without a bbox" in refused


@pytest.mark.usefixtures("at_server")
def test_workers_and_orchestrators_are_listed_over_http() -> None:
    while "active" not in call("workers").out:  # The worker registers itself after the server has started.
        pass
    header, orchestrator, worker = call("workers").out.splitlines()
    assert header.split()[:3] == ["ROLE", "ID", "STATUS"]
    assert orchestrator.split()[0::2][:2] == ["orchestrator", "running"]
    assert worker.split()[0::2][:2] == ["worker", "active"]
    listed = [line.split() for line in call("workflows").out.splitlines()]
    assert ["greeting", "1", "4", "name,", "times?", "greeting.yaml"] in listed


@pytest.mark.usefixtures("at_server")
def test_errors_are_the_same_as_without_a_server() -> None:
    refused = submit("greeting", '{"name": "Ada", "tmies": 2}')
    assert (refused.code, refused.err) == (2, "error: input 'tmies' is unknown; did you mean 'times'?\n")
    assert call("show", "12345").err == "error: there is no job 12345; `dagmaster jobs` lists them\n"
    assert "needs a workflow id" in submit("greeting.yaml").err
    assert "--by cannot be used with --url" in call("cancel", submit("waiting").out.strip(), "--by", "me").err
    assert "must be of type integer, not 'x'" in submit("greeting", "-i", "times=x").err


@pytest.mark.parametrize("command", ["jobs", "workers", "queues", "workflows"])
def test_an_unreachable_server_is_a_usage_error(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(command, "--url", "http://127.0.0.1:9")
    assert done.code == 2
    assert done.err.startswith("error: http://127.0.0.1:9 cannot be reached")


def test_the_key_is_sent_and_a_key_on_the_command_line_causes_a_warning(running: Server) -> None:
    done = call("jobs", "--url", running.url, "--api-key", "dm_wrong")
    assert (done.code, done.err) == (2, "error: the API key is unknown, revoked or expired\n")
    assert "other users of this machine can see" in " ".join(call("--help").out.replace("│", " ").split())


@pytest.mark.usefixtures("at_server")
def test_explain_prints_the_same_over_http(dsn: str) -> None:
    job_id = submit("waiting").out.strip()
    while "queue" not in (explanation := call("explain", job_id, "work").out):
        assert "orchestrator" not in explanation
    directly = call("--database-url", dsn, "explain", job_id, "work", "--json").json
    remotely = call("explain", job_id, "work", "--json").json
    assert remotely["sentence"] == directly["sentence"]
    assert (remotely["kind"], "nobody" in remotely["sentence"]) == (directly["kind"], True)


@pytest.mark.parametrize("command", [["doctor"], ["keys", "list"], ["prune", "--days", "1"], ["migrate"]])
def test_database_commands_with_a_server_url_open_no_local_database(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("--url", "http://127.0.0.1:1", *command)
    assert result.code == 2
    assert "--database-url" in result.err
    assert list(tmp_path.iterdir()) == []
