"""No internals leave in a result or an error, and other data is unchanged."""

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.gateway.scrub import MAX_DEPTH, Scrubber
from dagmaster.gateway.services import known_hosts
from dagmaster.settings import load_settings
from dagmaster.snowflakes import new_id

scrubber = Scrubber(["vm-worker-07", "db.example.org"])

KEYS = [
    "job_id",
    "task_id",
    "node_ids",
    "owner_id",
    "worker_id",
    "correlation_id",
    "parent_job_id",
    "hostname",
    "traceback",
]
harmless = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**13), 10**13)
    | st.floats(allow_nan=False)
    | st.text("abc xyz", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "title"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def with_internals(draw: st.DrawFn) -> tuple[Any, list[str]]:
    """Data of any shape that contains an id, and the strings that must be hidden."""
    job_id = str(draw(st.integers(10**14, 10**19 - 1)))
    node = draw(st.from_regex(r"[a-z][a-z_]{4,10}", fullmatch=True)) + "_secretly"
    task_id = f"{job_id}_{node}_{draw(st.integers(0, 9))}"
    leaf: Any = draw(
        st.sampled_from(
            [
                job_id,
                int(job_id),
                f"task {task_id} failed",
                f"{{'job_id': {job_id}}}",
                {task_id: 1},
                {draw(st.sampled_from(KEYS)): f"{node} {job_id}"},
                f"/var/lib/{node}/out.tif",
                f"vm-worker-07 lost {job_id}",
                f'SELECT * FROM dagapp.dag_jobs WHERE node = "{node}"',
                f'Traceback (most recent call last):\n  File "/srv/{node}.py", line 3, in f\n    {node}()\nValueError',
            ]
        )
    )
    for _ in range(draw(st.integers(0, 5))):
        leaf = draw(st.sampled_from([[leaf], {"result": leaf}, {"a": 1, "echo": {"x": leaf}}, [0, [leaf], "end"]]))
    return leaf, [job_id, node, task_id, "vm-worker-07", "dag_jobs", "Traceback"]


@given(with_internals())
def test_no_internal_id_name_or_code_remains_at_any_depth(data: tuple[Any, list[str]]) -> None:
    value, internals = data
    seen = str(scrubber.value(value))
    assert not [word for word in internals if word in seen], seen


@given(harmless)
def test_data_without_internals_is_unchanged(value: Any) -> None:
    assert scrubber.value(value) == value


@given(with_internals())
def test_scrubbing_is_idempotent(data: tuple[Any, list[str]]) -> None:
    once = scrubber.value(data[0])
    assert scrubber.value(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "the file is not a GeoTIFF: band 4 of 3",
        "select a file from the list, update the set, delete from there",
        "asset a9234e9e7b1ae7c5151568522b54db33 is 12.345678901234567 degrees wide",
        "0a4d55a8d778e5022fab701977c5d840bbc486d0111111111111111ffffffff0",
        "request 3f2b8c1e-2f6e-4a53-9a58-0d9d7a1f3c11 at 2026-11-17T12:00:00.123456Z",
        "https://tiles.example.com/a/b/c.png?x=1 is 3/4 done and/or late",
        "expected EPSG:4326, got EPSG:3857",
        "containers/silver/ddh/0038272/1.tif",
    ],
)
def test_plain_words_hashes_urls_and_numbers_are_kept(text: str) -> None:
    assert scrubber.text(text) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("job 248425451727096836 has no room", "job *** has no room"),
        ("cannot open /data/in/x.tif", "cannot open ***"),
        (r"cannot open C:\data\x.tif", "cannot open ***"),
        ('connection to server at "10.1.2.3", port 5432 failed', 'connection to server at "***", port 5432 failed'),
        ("vm-worker-07: no space", "***: no space"),
        ("lost db.example.org", "lost ***"),
        ("see worker-3.pool.svc.cluster.local:8080", "see ***"),
        ("dial postgresql://u:p@db/dagmaster now", "dial *** now"),
        ("bad: INSERT INTO x VALUES (1); then more", "bad: *** then more"),
        ('relation "dagapp.dag_jobs" does not exist', 'relation "***" does not exist'),
        ("no such column\nLINE 1: SELECT nothing\n               ^\n", "no such column\n"),
        ("password=hunter22 was refused", "password=*** was refused"),
        (
            'it broke\nTraceback (most recent call last):\n  File "/a/b.py", line 1, in f\n    g()\nKeyError: 7',
            "it broke\nKeyError: 7",
        ),
    ],
)
def test_internals_in_strings_are_hidden(text: str, seen: str) -> None:
    assert scrubber.text(text) == seen


def test_outputs_keep_their_paths_but_not_ids() -> None:
    job_id = new_id()
    outputs = {"blob_path": f"/silver/{job_id}/x.tif", "local_path": "/data/in/x.tif"}
    assert scrubber.value(outputs) == {"blob_path": "/silver/***/x.tif", "local_path": "***"}


@pytest.mark.parametrize(
    "name", [*KEYS, "jobId", "Task-Id", "_provenance", "current_job_id", "exportJobIds", "workerHost"]
)
def test_internal_names_are_hidden(name: str) -> None:
    assert scrubber.is_internal(name)


@pytest.mark.parametrize(
    "name", ["dataset_id", "asset_id", "request_id", "workflow_id", "title", "job_title", "nodes", "id"]
)
def test_other_names_are_kept(name: str) -> None:
    assert not scrubber.is_internal(name)


def test_deeply_nested_values_are_truncated() -> None:
    value: Any = "x"
    for _ in range(5 * MAX_DEPTH):
        value = [value]
    assert str(scrubber.value(value)).count("[") == MAX_DEPTH


def test_operators_see_jobs_and_nodes_but_no_owner_host_or_code() -> None:
    job_id = new_id()
    event = {
        "job_id": job_id,
        "node_id": "load",
        "owner_id": "7",
        "workerId": "8",
        "error": f"{job_id} on vm-worker-07",
    }
    text = f"worker {new_id()} lost {job_id}_load_0: SELECT x FROM y"
    operators = Scrubber(["vm-worker-07"], hides_ids=False)
    assert operators.value(event) == {"job_id": job_id, "node_id": "load", "error": f"{job_id} on ***"}
    assert operators.text(text) == f"worker *** lost {job_id}_load_0: ***"


def test_configured_hosts_are_hidden_unless_public_or_common_words() -> None:
    settings = load_settings(
        url="http://orchestrator-1.example.org:8080",
        worker_url="https://maps.example.org",
        public_url="https://maps.example.org",
        gateway_database_url="postgresql://reader@db,db-2.example.org/dagmaster",
    )
    assert known_hosts(settings) == {socket.gethostname(), "orchestrator-1.example.org", "db-2.example.org"}
