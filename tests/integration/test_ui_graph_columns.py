"""The graph of a job for pages: the same data as the API, in a tenth of the bytes."""

import gzip
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from fleet import graph, task

from dagmaster.model.workflow import StartNode
from dagmaster.web.graph_view import (
    DRAWN_OF_EDGES,
    DRAWN_OF_NODES,
    MAX_ERROR,
    TIMES,
    JobGraph,
    column,
    columns,
    draw,
    draw_columns,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WIDE, DEEP = 50, 20
JOB = {"job_id": 7, "workflow_id": "wide", "workflow_version": 1, "status": "running"}


def value_at(column: Any, place: int) -> Any:
    """Decode as static/graph/columns.js does."""
    if isinstance(column, list):
        return column[place]
    return column["values"][int(column["at"][place], 36)] if "at" in column else column["same"]


def rows_of(packed: dict[str, Any], names: tuple[str, ...]) -> list[dict[str, Any]]:
    places = range(packed["length"])
    return [{name: value_at(packed[name], at) if name in packed else None for name in names} for at in places]


def a_wide_job() -> tuple[Any, list[dict[str, Any]]]:
    nodes: dict[str, Any] = {"START": StartNode(next=tuple(f"n0_{row}" for row in range(WIDE)))}
    for depth in range(DEEP):
        for row in range(WIDE):
            following = sorted({f"n{depth + 1}_{row}", f"n{depth + 1}_{(row * 7 + 3) % WIDE}"})
            nodes[f"n{depth}_{row}"] = task("echo", *(following if depth + 1 < DEEP else ["END"]))
    wide = graph(nodes, "wide")
    return wide, [a_row(node_id, place) for place, node_id in enumerate(wide.nodes)]


def a_row(node_id: str, place: int) -> dict[str, Any]:
    began = NOW + timedelta(milliseconds=place * 37)
    return {
        "node_id": node_id,
        "status": "failed" if place % 10 == 9 else "completed",
        "ended_by": None,
        "retry_count": place % 3,
        "max_retries": 3,
        "error_message": f"no {place}: {'x' * 400}" if place % 10 == 9 and place < 50 else None,
        "not_before": None,
        "started_at": began,
        "completed_at": began + timedelta(milliseconds=250),
        "taken_branch": None,
    }


def test_a_column_is_encoded_as_short_as_its_values_allow() -> None:
    assert column([]) == {"same": None}
    assert column(["a", "a"]) == {"same": "a"}
    assert column(["a", "b"]) == ["a", "b"]
    assert column(["a", None, "a"]) == {"values": ["a", None], "at": "010"}
    assert column(list(range(37))) == list(range(37))
    assert column([{"completed": 1}, None]) == [{"completed": 1}, None]
    assert columns([{"a": 1}, {"a": 1, "b": None}], ("a", "b")) == {"a": {"same": 1}}


def test_columns_contain_the_same_as_the_api() -> None:
    wide, rows = a_wide_job()
    drawn = draw(JobGraph(JOB, wide, rows, [], 3)).model_dump(mode="json")
    packed = orjson.loads(orjson.dumps(draw_columns(JobGraph(JOB, wide, rows, [], 3))))
    assert (packed["status"], packed["last_event_id"]) == (drawn["status"], drawn["last_event_id"])
    nodes = rows_of(packed["nodes"], DRAWN_OF_NODES)
    assert [node["node_id"] for node in nodes] == [node["node_id"] for node in drawn["nodes"]]
    for node, other in zip(nodes, drawn["nodes"], strict=True):
        plain = set(DRAWN_OF_NODES) - {*TIMES, "children", "added", "error_message"}
        assert {name: node[name] for name in plain} == {name: other[name] for name in plain}
        assert node["error_message"] == (other["error_message"] and other["error_message"][:MAX_ERROR])
        began = datetime.fromtimestamp((packed["since"] + node["started_at"]) / 1000, UTC)
        assert began == datetime.fromisoformat(other["started_at"])
    edges = rows_of(packed["edges"], ("source", "target", *DRAWN_OF_EDGES))
    assert [(nodes[edge["source"]]["node_id"], nodes[edge["target"]]["node_id"], edge["kind"]) for edge in edges] == [
        (edge["source"], edge["target"], edge["kind"]) for edge in drawn["edges"]
    ]


def test_a_duration_is_the_same_in_columns_as_in_lists() -> None:
    wide, rows = a_wide_job()
    began = datetime(2026, 1, 1, 0, 0, 0, 600, UTC)
    timed = [{**row, "started_at": began, "completed_at": began + timedelta(microseconds=11_600)} for row in rows]
    packed = draw_columns(JobGraph(JOB, wide, timed, [], 3))["nodes"]
    assert (packed["started_at"], packed["completed_at"]) == ({"same": 0}, {"same": 12})
    assert {node.duration_seconds for node in draw(JobGraph(JOB, wide, timed, [], 3)).nodes} == {0.012}


def test_columns_take_a_tenth_of_the_bytes_of_rows() -> None:
    wide, rows = a_wide_job()
    plain = draw(JobGraph(JOB, wide, rows, [], 3)).model_dump_json().encode()
    packed = orjson.dumps(draw_columns(JobGraph(JOB, wide, rows, [], 3)))
    assert len(packed) < len(plain) / 9
    assert len(gzip.compress(packed)) < len(gzip.compress(plain))
