from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import psycopg
import pytest
from command_line import WORKFLOWS, call, write_workflow

from dagmaster.settings import load_settings
from dagmaster.store.databases import database

WORKING = """\
workflow_id: working
nodes:
  a: {handler: echo, queue: default, params: {x: 1}, next: b}
  b: {handler: echo, queue: default}
"""
TWO_WAYS = """\
workflow_id: two_ways
nodes:
  fork: {type: conditional, condition: "{{ 1 == 2 }}", on_true: yes, on_false: no}
  "yes": {handler: echo, queue: default}
  "no": {type: fan_out, source: [1, 2], task: {handler: flaky_echo, queue: default,
    params: {fail_attempts: 1}, retry: {max_attempts: 1, initial_delay_seconds: 0}}}
"""


@pytest.fixture(autouse=True)
def installation(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.setenv("DAGMASTER_WORKFLOWS_DIR", str(WORKFLOWS))


@pytest.fixture
def working(tmp_path: Path) -> Path:
    return write_workflow(tmp_path, WORKING, "working.yaml")


@pytest.fixture
def ended(tmp_path: Path) -> str:
    """An ended job with a fork and some retries."""
    done = call("run", write_workflow(tmp_path, TWO_WAYS, "two_ways.yaml"), "--json")
    assert done.code == 0, done.err
    job_id: str = done.json["job_id"]
    return job_id


# submit


def test_submit_prints_the_job_id_and_warns_if_no_worker_can_run_it(working: Path) -> None:
    done = call("submit", working)
    assert done.code == 0
    assert done.out.strip().isdecimal()
    assert done.err.startswith("warning: no orchestrator is running")
    job = call("show", done.out.strip(), "--json").json
    assert (job["status"], job["job_id"]) == ("pending", done.out.strip())


def test_the_same_key_returns_the_first_job(working: Path) -> None:
    first = call("submit", working, "--idempotency-key", "k", "--json").json
    again = call("submit", working, "--idempotency-key", "k", "--json")
    assert first["is_new"] is True
    assert again.json == {"job_id": first["job_id"], "is_new": False}
    assert "already submitted with this idempotency key" in again.err
    assert call("submit", working, "--idempotency-key", "k", "--submitted-by", "me", "--json").json["is_new"] is True


def test_the_same_key_with_other_inputs_is_refused() -> None:
    env = {"DAGMASTER_WORKER_QUEUE": "default"}
    assert call("submit", "hello_world", '{"name": "Ada"}', "--idempotency-key", "k", env=env).code == 0
    done = call("submit", "hello_world", '{"name": "Bob"}', "--idempotency-key", "k", env=env)
    assert done.code == 2
    assert "idempotency key 'k' belongs to job" in done.err


def test_submit_options_are_stored_with_the_job(working: Path) -> None:
    options = ("--priority", 5, "--correlation-id", "c", "--submitted-by", "me")
    job = call("show", call("submit", working, *options, "--json").json["job_id"], "--json").json
    assert (job["priority"], job["correlation_id"], job["submitted_by"]) == (5, "c", "me")


def test_inputs_are_validated_before_the_job_is_stored() -> None:
    env = {"DAGMASTER_WORKER_QUEUE": "default"}
    done = call("submit", "hello_world", '{"nmae": "Ada"}', env=env)
    assert (done.code, done.err) == (2, "error: input 'nmae' is unknown; did you mean 'name'?\n")
    assert call("jobs", "--json").json == []


def test_an_unknown_queue_is_refused_on_a_shared_server() -> None:
    done = call("submit", "hello_world")
    assert done.code == 2
    assert "node 'greet' has no queue" in done.err


# jobs and show


def test_jobs_can_be_listed_and_filtered(ended: str, working: Path) -> None:
    waiting = call("submit", working, "--json").json["job_id"]
    assert [job["job_id"] for job in call("jobs", "--json").json] == [waiting, ended]
    assert [job["job_id"] for job in call("jobs", "--status", "COMPLETED", "--json").json] == [ended]
    assert [job["job_id"] for job in call("jobs", "--workflow", "working", "--json").json] == [waiting]
    assert [job["job_id"] for job in call("jobs", "--limit", "1", "--json").json] == [waiting]
    header, first, second = call("jobs").out.splitlines()
    assert header.split() == ["JOB", "WORKFLOW", "STATUS", "SUBMITTED", "TIME", "ERROR"]
    assert first.split()[:3] == [waiting, "working", "pending"]
    assert second.split()[:3] == [ended, "two_ways", "completed"]


def test_jobs_are_printed_in_machine_readable_formats(ended: str) -> None:
    [line] = call("jobs", "--output", "jsonl").out.splitlines()
    assert orjson.loads(line)["job_id"] == ended
    assert call("jobs", "-o", "json").json == call("jobs", "--json").json == [orjson.loads(line)]
    assert call("jobs", "--output", "plain").out == call("jobs").out


def test_a_job_can_be_addressed_as_last_or_by_an_id_prefix(ended: str, working: Path) -> None:
    waiting = call("submit", working, "--json").json["job_id"]
    assert call("show", "last", "--json").json["job_id"] == waiting
    assert call("show", "last:two_ways", "--json").json["job_id"] == ended
    unique = next(ended[:length] for length in range(1, len(ended) + 1) if not waiting.startswith(ended[:length]))
    assert call("show", unique, "--json").json["job_id"] == ended
    assert "completed" in call("timeline", unique).out
    shared = call("show", ended[:3])
    assert shared.code == 2
    assert f"{ended[:3]} matches several jobs: {waiting}, {ended}" in shared.err


@pytest.mark.parametrize("reference", ["lst", "last:", "0", "-1", "1" * 20, "²"])
def test_an_invalid_job_reference_is_a_usage_error(reference: str) -> None:
    done = call("explain", "--", reference)
    assert done.code == 2
    assert "use a job id, its first digits, `last` or `last:WORKFLOW`" in done.err


def test_last_skips_child_jobs(working: Path, dsn: str) -> None:
    parent, child = (call("submit", working, "--json").json["job_id"] for _ in range(2))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("UPDATE dagapp.dag_jobs SET parent_job_id = %s WHERE job_id = %s", [parent, child])
    assert call("show", "last", "--json").json["job_id"] == parent
    assert call("show", "last:working", "--json").json["job_id"] == child


def test_read_commands_create_no_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGMASTER_DATABASE_URL")
    result = call("jobs")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: there are no jobs in .dagmaster yet: run `dagmaster run`")
    assert not (tmp_path / ".dagmaster").exists()


def test_an_empty_job_list_says_so() -> None:
    listed = call("jobs")
    assert (listed.code, listed.out, listed.err) == (0, "", "no jobs\n")
    assert call("jobs", "--status", "odd").code == 2


def test_show_prints_the_nodes_and_the_result_of_a_job(ended: str) -> None:
    result = call("show", ended)
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert ["status", "✓", "completed"] in lines
    assert ["yes", "skipped"] in lines
    assert any(line[:2] == ["fork", "completed"] for line in lines)
    assert '"fan_out_count": 2' in result.out


def test_show_counts_attempts_that_failed_before_their_dispatch(tmp_path: Path) -> None:
    retry = "retry: {retries: 1, initial_delay_seconds: 0, on: ExpressionFailed}"
    node = 'params: {x: "{{ [1][inputs.n] }}"}, ' + retry
    path = write_workflow(tmp_path, f"workflow_id: unready\nnodes: {{a: {{handler: echo, queue: default, {node}}}}}")
    job_id = call("run", path, "-i", "n=3", "--json").json["job_id"]
    lines = [line.split() for line in call("show", job_id).out.splitlines()]
    assert any(line[:3] == ["a", "failed", "2"] for line in lines)


def test_show_prints_the_return_value_of_a_python_workflow(tmp_path: Path) -> None:
    (tmp_path / "sums_up.py").write_text(
        "from dagmaster import task, workflow\n\n\n@task\ndef one(n: int) -> int:\n    return n + 1\n\n\n"
        "@workflow\ndef sums_up(n: int = 1):\n    return {'first': one(n), 'given': n}\n"
    )
    ran = call("run", "sums_up.py", "-i", "n=4", "--json").json
    assert ran["value"] == {"first": 5, "given": 4}
    result = call("show", ran["job_id"])
    assert "returned\n{\n" in result.out
    assert '"first": 5' in result.out
    assert call("show", ran["job_id"], "--json").json["value"] == {"first": 5, "given": 4}


def test_nodes_and_results_are_in_the_order_of_the_graph(tmp_path: Path) -> None:
    nodes = "nodes: {zebra: {handler: echo, queue: default, next: apple}, apple: {handler: echo, queue: default}}"
    waiting = call("submit", write_workflow(tmp_path, f"workflow_id: ordered\n{nodes}"), "--json").json["job_id"]
    order = ["START", "zebra", "apple", "END"]
    assert [node["node_id"] for node in call("show", waiting, "--json").json["nodes"]] == order
    ran = call("run", write_workflow(tmp_path, f"workflow_id: other\n{nodes}"), "--json").json
    job = call("show", ran["job_id"], "-o", "json").json  # It has ended; the waiting job may not have.
    assert [name for name in job["result_data"] if name in order] == [
        name for name in order if name in job["result_data"]
    ]


def test_a_submission_notifies_the_orchestrators_once(working: Path, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("LISTEN dagmaster_mail")
        call("submit", working)
        conn.execute("NOTIFY dagmaster_mail, 'end'")  # Arrives after all earlier notifications.
        payloads = [notification.payload for notification in conn.notifies(timeout=60, stop_after=2)]
        assert len(payloads) == 2 and payloads[1] == "end"


def test_show_prints_the_progress_of_a_running_job(working: Path, dsn: str) -> None:
    assert call("run", working).code == 0
    job_id = call("submit", working).out.strip()
    assert "progress" not in call("show", job_id).out
    with psycopg.connect(dsn) as conn:
        conn.execute("UPDATE dagapp.dag_jobs SET status = 'running', started_at = now() WHERE job_id = %s", [job_id])
        query = "UPDATE dagapp.dag_node_states SET status = 'completed' WHERE job_id = %s AND node_id = 'a'"
        conn.execute(query, [job_id])
    job = call("show", job_id, "--json").json
    assert (job["estimate_basis"], job["estimated_completion"] is None) == ("history", False)
    assert f"progress    {job['work_percent']} %, a few seconds left" in call("show", job_id).out.splitlines()


def test_child_nodes_are_shown_on_request(ended: str) -> None:
    nodes = {node["node_id"] for node in call("show", ended, "--json").json["nodes"]}
    assert nodes == {"START", "END", "fork", "yes", "no"}
    job = call("show", ended, "--children", "--json").json
    children = {node["node_id"]: node["retry_count"] for node in job["nodes"] if node["parent_node_id"] == "no"}
    assert children == {"no__0": 1, "no__1": 1}  # The order depends on which started first.


@pytest.mark.parametrize("command", ["show", "timeline", "cancel"])
def test_an_unknown_job_is_a_usage_error(command: str) -> None:
    done = call(command, "12345")
    assert (done.code, done.err) == (2, "error: there is no job 12345; `dagmaster jobs` lists them\n")
    assert call(command, "twelve").code == 2
    assert call(command, 2**63).code == 2


# timeline


def test_the_timeline_describes_events_in_words(ended: str) -> None:
    messages = [line.partition("  ")[2] for line in call("timeline", ended).out.splitlines()[1:]]
    assert messages[0] == "submitted: two_ways version 1"
    assert messages[-1].startswith("the job is completed after ")
    assert "yes skipped: its branch was not taken" in messages
    assert "no__0 failed: flaky_echo failed in attempt 1; it will be retried" in messages
    assert "no__0 attempt 2 of 2" in messages


def test_the_timeline_can_be_filtered_by_node_and_type(ended: str) -> None:
    lines = call("timeline", ended, "--node", "no__1", "--type", "node_failed,node_running", "--json").out.splitlines()
    events = [orjson.loads(line) for line in lines]
    assert [event["event_type"] for event in events] == ["node_started", "node_failed", "node_started"]
    assert {event["node_id"] for event in events} == {"no__1"}
    assert all(event["created_at"].endswith("Z") for event in events)


def test_an_unknown_event_type_is_a_usage_error(ended: str) -> None:
    done = call("timeline", ended, "--type", "node_faild")
    assert (done.code, done.err) == (
        2,
        "error: there is no event type 'node_faild'; did you mean 'node_failed'?\n",
    )


def test_following_stops_when_the_job_ends(ended: str) -> None:
    assert call("timeline", ended, "--follow").out == call("timeline", ended).out


# cancel


def test_an_ended_job_cannot_be_cancelled(ended: str) -> None:
    done = call("cancel", ended)
    assert (done.code, done.err) == (2, f"error: job {ended} is completed and cannot be cancelled\n")


def test_without_an_orchestrator_the_cancellation_is_stored(working: Path) -> None:
    job_id = call("submit", working, "--json").json["job_id"]
    done = call("cancel", job_id, "--reason", "not needed", "--by", "me")
    assert done.code == 0
    assert "an orchestrator will cancel it" in done.out
    assert call("run", working, "--json").code == 0
    job = call("show", job_id, "--json").json
    assert (job["status"], job["error_message"]) == ("cancelled", "not needed")
    assert "the job is cancelled by me: not needed" in call("timeline", job_id).out


# workers, queues, migrations, simulation


def test_workers_and_orchestrators_are_listed(ended: str) -> None:
    assert call("workers").err == "no orchestrators or workers are running\n"
    orchestrator, worker = call("workers", "--all").out.splitlines()[1:]
    assert orchestrator.split()[0::2][:2] == ["orchestrator", "stopped"]
    assert worker.split()[0::2][:2] == ["worker", "stopped"]
    everyone = call("workers", "--all", "--json").json
    assert len(everyone["orchestrators"]) == len(everyone["workers"]) == 1
    assert everyone["workers"][0]["tasks_completed"] == 2


def test_queues_are_empty_after_all_jobs_completed(ended: str) -> None:
    assert call("queues", "--json").json == []
    assert call("queues").err == "no tasks are waiting or running\n"


def test_the_schema_can_be_upgraded_and_downgraded() -> None:
    newest = call("migrate", "current", "--json").json["head"]
    assert call("migrate", "current").out == f"{newest} (latest)\n"
    assert call("migrate", "downgrade", "base").out == "schema revision: base\n"
    assert call("migrate", "current", "--json").json == {"current": None, "head": newest, "is_current": False}
    assert call("migrate", "upgrade", "0001").out == "schema revision: 0001\n"
    assert call("migrate").out == f"schema revision: {newest}\n"
    history = call("migrate", "history", "--json").json
    assert [entry["revision"] for entry in history if entry["is_current"]] == [newest]
    assert f"→  {newest}" in call("migrate", "history").out


def test_a_schema_of_another_release_is_refused(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("UPDATE dagapp.alembic_version SET version_num = '9999'")
    assert call("jobs").err.startswith("error: the database is at schema 9999")
    assert call("migrate", "current", "--json").json["is_current"] is False


@pytest.mark.parametrize("revision", ["base", "0001"])
def test_downgrading_without_a_schema_is_an_error(dsn: str, revision: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP SCHEMA dagapp, gateway CASCADE")
    done = call("migrate", "downgrade", revision)
    assert (done.code, done.err) == (
        2,
        "error: the database has no dagmaster tables, so there is nothing to downgrade\n",
    )


def test_a_shared_server_is_migrated_at_start_only_on_request(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP SCHEMA dagapp, gateway CASCADE")
    assert "run `dagmaster migrate`" in call("jobs").err
    env = {"DAGMASTER_AUTO_MIGRATE": "true"}
    with ThreadPoolExecutor(4) as at_once:
        settings = load_settings(auto_migrate=True)
        list(at_once.map(lambda _: database(settings).__enter__(), range(4)))
    assert call("jobs", env=env).code == call("jobs").code == 0


def test_an_unknown_revision_is_a_usage_error() -> None:
    done = call("migrate", "downgrade", "abc")
    assert done.code == 2
    assert "`dagmaster migrate history` lists the revisions" in done.err
