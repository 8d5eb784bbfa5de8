"""The handlers of the package."""

import json
import random
from hashlib import sha256
from time import perf_counter
from typing import Any

import pytest

from dagmaster.handlers import Checkpoint, HandlerContext, HandlerResult, call, encode_output, registry
from dagmaster.handlers.contract import Interrupted

BASIC = [
    "adf_export",
    "chunk_processor",
    "collect",
    "echo",
    "fail",
    "flaky_echo",
    "hello_world",
    "multi_phase",
    "size_check",
    "sleep",
]


def a_context(name, params=None, **fields) -> HandlerContext:
    ids: dict[str, Any] = {"task_id": "7_a_0", "job_id": 7, "node_id": "a"}
    return HandlerContext(**ids, handler=name, params=params or {}, **fields)


async def run(name, params=None, **fields) -> HandlerResult:
    return await call(registry.get(name), a_context(name, params, **fields), executor=None)


@pytest.mark.parametrize("name", BASIC)
def test_no_basic_handler_requires_a_queue(name):
    assert registry.queues()[name] is None


async def test_collect_returns_a_list_as_one_result():
    assert (await run("collect", {"values": [1, {"a": None}]})).output == {"result": [1, {"a": None}]}
    assert (await run("collect")).output == {"result": []}


async def test_echo_returns_its_params():
    params = {"message": "hi", "nested": {"steps": [1, None]}}
    assert (await run("echo", params)).output == {"echoed_params": params}


async def test_echo_reports_each_step():
    seen: list[Any] = []
    result = await run("echo", {"steps": 3}, progress_sink=seen.append)
    names = ["step_1", "step_2", "step_3"]
    assert result.output == {"echoed_params": {"steps": 3}, "steps_completed": 3, "completed_steps": names}
    assert [(progress.current, progress.total) for progress in seen] == [(1, 3), (2, 3), (3, 3)]


async def test_echo_waits_and_saves_a_checkpoint_per_step():
    saved: list[Any] = []
    began = perf_counter()
    result = await run("echo", {"steps": 3, "step_delay": 0.05}, checkpoint_sink=saved.append)
    assert perf_counter() - began >= 0.14
    assert (
        [checkpoint.phase for checkpoint in saved] == result.output["completed_steps"] == ["step_1", "step_2", "step_3"]
    )
    assert saved[1].data == {"completed_steps": ["step_1", "step_2"]}


async def test_echo_resumes_after_the_saved_step():
    saved: list[Any] = []
    result = await run("echo", {"steps": 3}, checkpoint_sink=saved.append, resumed_from=Checkpoint("step_2", {}))
    assert [checkpoint.phase for checkpoint in saved] == ["step_3"]
    assert result.output["completed_steps"] == ["step_1", "step_2", "step_3"]


@pytest.mark.parametrize("steps", ["three", None, True, [1]])
async def test_echo_ignores_steps_that_are_not_a_number(steps):
    assert (await run("echo", {"steps": steps})).output == {"echoed_params": {"steps": steps}}


async def test_hello_world_greets():
    assert (await run("hello_world")).output == {"message": "Hello, world!"}
    assert (await run("hello_world", {"message": "Moin"})).output == {"message": "Moin"}


async def test_sleep_sleeps():
    assert (await run("sleep", {"seconds": 0.01})).output == {"slept_seconds": 0.01}


@pytest.mark.parametrize("seconds", [-1, "long", float("nan"), float("inf")])
async def test_sleep_refuses_an_invalid_duration(seconds):
    result = await run("sleep", {"seconds": seconds})
    assert result.permanent
    assert "seconds" in result.error_message


async def test_fail_fails():
    assert await run("fail") == HandlerResult.failed("failed, as requested")
    assert await run("fail", {"message": "no", "permanent": True}) == HandlerResult.failed("no", permanent=True)


@pytest.mark.parametrize("retry_count, success", [(0, False), (1, False), (2, True)])
async def test_flaky_echo_fails_the_first_attempts(retry_count, success):
    result = await run("flaky_echo", {"fail_attempts": 2, "failure_rate": 1}, retry_count=retry_count)
    assert result.success is success
    assert not result.permanent


async def test_flaky_echo_fails_one_time_in_five():
    random.seed(7)
    results = [await run("flaky_echo", {"x": 1}) for _ in range(500)]
    failures = [result for result in results if not result.success]
    assert 70 < len(failures) < 130
    assert failures[0].error_message == "flaky_echo failed in attempt 1"


@pytest.mark.parametrize("rate, success", [(0, True), (1, False)])
async def test_flaky_echo_follows_its_rate(rate, success):
    assert (await run("flaky_echo", {"failure_rate": rate})).success is success


async def test_multi_phase_saves_a_checkpoint_after_each_phase():
    saved: list[Any] = []
    reported: list[Any] = []
    sinks = {"checkpoint_sink": saved.append, "progress_sink": reported.append}
    result = await run("multi_phase", {"phases": 3, "phase_seconds": 0}, **sinks)
    names = ["phase_1", "phase_2", "phase_3"]
    assert [checkpoint.phase for checkpoint in saved] == names
    assert saved[1].data == {"completed": names[:2]}
    assert [progress.percent for progress in reported] == [33.3, 66.7, 100.0]
    assert result.output == {"phases_completed": names, "executed": names, "resumed_after": None}


@pytest.mark.parametrize(
    "reached, executed",
    [("read", ["clip", "write"]), ("clip", ["write"]), ("write", []), ("unknown", ["read", "clip", "write"])],
)
async def test_multi_phase_resumes_after_the_saved_phase(reached, executed):
    params = {"phases": ["read", "clip", "write"], "phase_seconds": 0}
    result = await run("multi_phase", params, resumed_from=Checkpoint(reached, {}))
    assert result.output["executed"] == executed
    assert result.output["phases_completed"] == ["read", "clip", "write"]


@pytest.mark.parametrize("phases", [0, [], "many"])
async def test_multi_phase_requires_phases(phases):
    assert (await run("multi_phase", {"phases": phases})).permanent


@pytest.mark.parametrize(
    "size_mb, is_large, queue", [(0, False, "light-tasks"), (99, False, "light-tasks"), (100, True, "heavy-tasks")]
)
async def test_size_check_recommends_a_queue(size_mb, is_large, queue):
    size_bytes = size_mb * 1024 * 1024
    assert (await run("size_check", {"size_bytes": size_bytes})).output == {
        "size_bytes": size_bytes,
        "size_mb": size_mb,
        "is_large": is_large,
        "recommended_queue": queue,
    }


@pytest.fixture
def bronze(tmp_path, monkeypatch):
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    folder = tmp_path / "storage" / "bronze"
    folder.mkdir(parents=True)
    return folder


async def test_size_check_reads_a_file_with_custom_threshold_and_queues(bronze):
    (bronze / "a.tif").write_bytes(b"x" * 2048)
    params = {"path": "bronze/a.tif", "threshold_mb": 0.001, "heavy_queue": "big"}
    output = (await run("size_check", params)).output
    assert (output["size_bytes"], output["recommended_queue"]) == (2048, "big")


async def test_size_check_of_a_missing_file_is_retryable(bronze):
    result = await run("size_check", {"path": "bronze/gone.tif"})
    assert result.error_message == "FileMissing: there is no file bronze/gone.tif"
    assert not result.permanent


@pytest.mark.parametrize("path", ["/etc/passwd", "bronze/../../../secret", "bronze/link"])
async def test_size_check_reveals_nothing_about_files_outside_the_storage(bronze, path):
    (bronze / "link").symlink_to("/etc/passwd")
    result = await run("size_check", {"path": path})
    assert result.permanent
    assert result.output is None


EXPORT = {"asset_id": "a1", "version_ordinal": 2, "blob_path": "bronze/rivers.tif"}


async def test_an_export_copies_the_file_to_the_external_zone(bronze):
    (bronze / "rivers.tif").write_bytes(b"rivers")
    result = await run("adf_export", EXPORT)
    assert result.output == {
        "external_blob_path": "external/a1/2/rivers.tif",
        "size_bytes": 6,
        "sha256": sha256(b"rivers").hexdigest(),
    }
    assert (bronze.parent / "external" / "a1" / "2" / "rivers.tif").read_bytes() == b"rivers"
    again = await run("adf_export", EXPORT)
    assert again.output == result.output


@pytest.mark.parametrize(
    "params", [{"blob_path": "/etc/passwd"}, {"blob_path": "bronze/../x"}, {"asset_id": "../../x"}, {"asset_id": "a/b"}]
)
async def test_an_export_cannot_leave_the_storage(bronze, params):
    (bronze / "rivers.tif").write_bytes(b"rivers")
    assert (await run("adf_export", {**EXPORT, **params})).permanent
    assert not (bronze.parent / "external").exists()


def write_tiles(bronze, contents):
    """An index of tiles, as `finalize` writes it."""
    features: list[dict[str, Any]] = []
    for name, content in contents.items():
        (bronze / name).write_bytes(content)
        digest = sha256(content).hexdigest()
        properties = {"blob_path": f"bronze/{name}", "content_hash": f"sha256:{digest}", "size_bytes": len(content)}
        features.append({"type": "Feature", "geometry": None, "properties": {"row": len(features), **properties}})
    (bronze / "index.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return {**EXPORT, "blob_path": "bronze/index.geojson"}


async def test_an_export_of_tiles_copies_each_tile_and_rewrites_the_index(bronze):
    params = write_tiles(bronze, {"a.tif": b"first", "b.tif": b"second"})
    stopped = a_context("adf_export", params)
    stopped.stopping.set()
    with pytest.raises(Interrupted):
        await call(registry.get("adf_export"), stopped, executor=None)
    outside = bronze.parent / "external" / "a1" / "2"
    assert [path.name for path in outside.rglob("*.*")] == ["a.tif"], "no index without all of its tiles"
    (outside / "tiles" / "a.tif").write_bytes(b"of the first attempt")
    result = await run("adf_export", params, resumed_from=stopped.last_checkpoint)
    assert result.success, result.error_message
    content = (outside / "index.geojson").read_bytes()
    assert result.output == {
        "external_blob_path": "external/a1/2/index.geojson",
        "size_bytes": len(content) + len(b"firstsecond"),
        "sha256": sha256(content).hexdigest(),
        "tile_count": 2,
    }
    tiles = [feature["properties"] for feature in json.loads(content)["features"]]
    assert [tile["blob_path"] for tile in tiles] == ["external/a1/2/tiles/a.tif", "external/a1/2/tiles/b.tif"]
    assert [tile["row"] for tile in tiles] == [0, 1]
    assert (outside / "tiles" / "a.tif").read_bytes() == b"of the first attempt", "it is not copied again"
    assert (outside / "tiles" / "b.tif").read_bytes() == b"second"
    assert list((bronze.parent / "mount").rglob("*.*")) == []


async def test_a_tile_that_differs_from_the_index_is_not_exported(bronze):
    params = write_tiles(bronze, {"a.tif": b"first"})
    (bronze / "a.tif").write_bytes(b"other")
    result = await run("adf_export", params)
    assert result.permanent
    assert "its checksum differs" in result.error_message
    assert list((bronze.parent / "external").rglob("*.*")) == []


@pytest.mark.parametrize("content", ["[1", "7", '{"features": [7]}'])
async def test_an_export_refuses_a_broken_index(bronze, content):
    (bronze / "index.geojson").write_text(content)
    assert (await run("adf_export", {**EXPORT, "blob_path": "bronze/index.geojson"})).permanent


async def test_an_export_copies_features_without_tiles_unchanged(bronze):
    (bronze / "layer.geojson").write_text('{"type": "FeatureCollection", "features": [{"properties": null}]}')
    result = await run("adf_export", {**EXPORT, "blob_path": "bronze/layer.geojson"})
    assert result.output["external_blob_path"] == "external/a1/2/layer.geojson"


@pytest.mark.parametrize("params", [{}, {"size_bytes": 1, "path": "/a"}])
async def test_size_check_requires_a_size_or_a_path(params):
    result = await run("size_check", params)
    assert result.permanent
    assert "either size_bytes or path" in result.error_message


@pytest.mark.parametrize("operation, expected", [("sum", 6.5), ("count", 3), ("echo", [1, 2, 3.5])])
async def test_chunk_processor_processes_a_chunk(operation, expected):
    result = await run("chunk_processor", {"chunk": [1, 2, 3.5], "operation": operation})
    assert result.output == {"processed": 3, "result": expected}


@pytest.mark.parametrize("item, kind", [("x", "str"), (True, "bool"), (None, "NoneType")])
async def test_chunk_processor_sums_numbers_only(item, kind):
    result = await run("chunk_processor", {"chunk": [1, item], "operation": "sum"})
    assert result == HandlerResult.failed(f"chunk[1] is a {kind}, not a number", permanent=True)


@pytest.mark.parametrize("params, field", [({}, "chunk"), ({"chunk": [], "operation": "mean"}, "operation")])
async def test_chunk_processor_names_the_invalid_parameter(params, field):
    result = await run("chunk_processor", params)
    assert result.permanent
    assert f"{field}: " in result.error_message


@pytest.mark.parametrize(
    "name, params",
    [("echo", {"a": 1}), ("hello_world", {}), ("size_check", {"size_bytes": 1}), ("chunk_processor", {"chunk": [1]})],
)
async def test_outputs_are_json_serializable(name, params):
    assert encode_output((await run(name, params)).output, 10_000).startswith(b"{")
