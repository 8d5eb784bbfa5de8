"""Models that are run on rasters window by window, against numpy on the whole raster at once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from onnx import TensorProto, helper
from onnx_models import ANY, convolved, model, save, save_classifier, save_convolution, save_mean
from rasters import VRT, write_tiff
from rio_cogeo.cogeo import cog_validate

from dagmaster.errors import UnknownHandler
from dagmaster.geo.prediction.image import ModelRun, Prediction
from dagmaster.geo.prediction.model import Model
from dagmaster.geo.raster.header import Part
from dagmaster.geo.raster.image import ImageSource, open_derived
from dagmaster.handlers import (
    Checkpoint,
    Handler,
    HandlerContext,
    HandlerResult,
    Registry,
    call,
    load_handlers,
    ml,
    registry,
)
from dagmaster.model.optional_handlers import OPTIONAL_HANDLERS

NODATA = -9


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DAGMASTER_RASTER_PROCESSES", "1")
    (tmp_path / "storage" / "bronze").mkdir(parents=True)
    return tmp_path / "storage"


def pixels(shape: tuple[int, ...], *, holes: bool = True) -> Any:
    random = np.random.default_rng(5)
    values = random.integers(0, 50, shape).astype("int16")
    if holes:
        values[random.random(shape) < 0.02] = NODATA
        values[..., :40, 30:200] = NODATA
    return values


async def run(params: dict[str, Any], **fields: Any) -> HandlerResult:
    ids: dict[str, Any] = {"task_id": "7_a_0", "job_id": 7, "node_id": "a", "handler": "ml_predict"}
    chosen = {"path": "bronze/a.tif", "model": "bronze/m.onnx", **params}
    return await call(registry.get("ml_predict"), HandlerContext(**{**ids, **fields}, params=chosen), executor=None)


async def output(**params: Any) -> dict[str, Any]:
    result = await run(params)
    assert result.success, result.error_message
    return result.output or {}


def read(storage: Path, made: dict[str, Any]) -> tuple[Any, Any]:
    path = storage / made["blob_path"]
    assert cog_validate(path, strict=True) == (True, [], [])
    with rasterio.open(path) as dataset, rasterio.open(storage / "bronze" / "a.tif") as source:
        assert (dataset.shape, dataset.transform, dataset.crs) == (source.shape, source.transform, source.crs)
        return dataset.read(), dataset.profile


@pytest.mark.parametrize(
    "options, side, pad",
    [
        ({"overlap": 1, "block_size": 200}, None, 1),
        ({"overlap": 3}, None, 1),
        ({"overlap": 1}, 96, 1),
        ({"overlap": 1, "block_size": 300}, None, 0),
    ],
    ids=["windows-of-any-size", "more-overlap", "windows-of-one-size", "without-padding"],
)
async def test_windows_with_overlap_give_what_the_whole_raster_gives(
    storage: Path, options: dict[str, int], side: int | None, pad: int
) -> None:
    values = pixels((530, 1100))
    write_tiff(storage / "bronze" / "a.tif", values, nodata=NODATA)
    save_convolution(storage / "bronze" / "m.onnx", side, pad)
    [result], profile = read(storage, await output(**options))
    assert (profile["dtype"], np.isnan(profile["nodata"])) == ("float32", True)
    valid = values != NODATA
    np.testing.assert_array_equal(np.isnan(result), ~valid)
    np.testing.assert_allclose(result[valid], convolved(values, valid)[valid], rtol=1e-5)


async def test_without_overlap_the_edges_of_windows_show(storage: Path) -> None:
    """What the parameter is for: without it, the test above would prove nothing."""
    values = pixels((100, 600), holes=False)
    write_tiff(storage / "bronze" / "a.tif", values)
    save_convolution(storage / "bronze" / "m.onnx")
    [result], _ = read(storage, await output(block_size=200))
    is_wrong = ~np.isclose(result, convolved(values, np.ones(values.shape, bool)), rtol=1e-5)
    assert set(np.nonzero(is_wrong)[1]) == {199, 200, 399, 400}


async def test_classes_of_several_bands_keep_their_type_and_names(storage: Path) -> None:
    values = pixels((3, 80, 520))
    write_tiff(storage / "bronze" / "a.tif", values, nodata=NODATA)
    save_classifier(storage / "bronze" / "m.onnx", 3)
    made = await output(nodata=255, band_names=["class"])
    [result], profile = read(storage, made)
    assert (profile["dtype"], profile["nodata"]) == ("int64", 255)
    valid = (values != NODATA).all(axis=0)
    np.testing.assert_array_equal(result, np.where(valid, values.argmax(axis=0), 255))
    [band] = made["cog"]["bands"]
    assert (band["description"], band["statistics"]["classes"]) == ("class", 3)
    assert made["blob_path"] == "silver/rasters/7/a/0/a_m.tif"
    assert made["model_hash"].startswith("sha256:")
    assert not list((storage / "mount" / "7").iterdir())


async def test_bands_are_chosen_and_an_alpha_band_is_a_mask(storage: Path) -> None:
    values = pixels((4, 60, 70), holes=False).astype("uint8")
    values[3] = 255
    values[3, :10] = 0
    write_tiff(storage / "bronze" / "a.tif", values, photometric="RGB", alpha="YES")
    save_mean(storage / "bronze" / "m.onnx", 2)
    [result], _ = read(storage, await output(bands=[3, 1]))
    assert np.isnan(result[:10]).all()
    np.testing.assert_allclose(result[10:], values[[2, 0], 10:].mean(axis=0, dtype="float32"))
    save_mean(storage / "bronze" / "m.onnx", 3)
    [result], _ = read(storage, await output())
    np.testing.assert_allclose(result[10:], values[:3, 10:].mean(axis=0, dtype="float32"), rtol=1e-6)


async def test_pixels_that_are_no_numbers_are_no_data(storage: Path) -> None:
    values = pixels((60, 70), holes=False).astype("float32")
    values[5, 6], values[7, 8] = np.nan, np.inf
    write_tiff(storage / "bronze" / "a.tif", values)
    save_mean(storage / "bronze" / "m.onnx", 1)
    [result], _ = read(storage, await output(fill=3))
    np.testing.assert_array_equal(np.isnan(result), ~np.isfinite(values))
    save_classifier(storage / "bronze" / "m.onnx", 1)
    refused = await run({})
    assert "the model returns int64: choose a value" in (refused.error_message or "")


def test_windows_without_data_are_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.full((64, 64), NODATA, "int16")
    values[:16, :16] = 1
    source = ImageSource(path=write_tiff(tmp_path / "a.tif", values, nodata=NODATA))
    calls: list[Any] = []
    loaded = Model(save_mean(tmp_path / "m.onnx", 1), 1)
    real = loaded.run

    def counted(window: Any) -> Any:
        calls.append(window.shape)
        return real(window)

    monkeypatch.setattr(loaded, "run", counted)
    with open_derived(source, ModelRun(loaded, "", Prediction(block_size=16))) as image:
        image.read(Part(column=0, row=0, width=64, height=64))
    assert calls == [(1, 16, 16)] * 2, "the first tells what the model returns"


def save_wrong(path: Path, kind: str) -> None:
    """Models that cannot be run on rasters, each for another reason."""
    two = model([helper.make_node("Identity", ["x"], ["y"])], ANY, ANY, (TensorProto.FLOAT, TensorProto.FLOAT))
    if kind == "inputs":
        two.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ANY))
        path.write_bytes(two.SerializeToString())
    elif kind == "rank":
        save(path, helper.make_node("Identity", ["x"], ["y"]), takes=["n", "c"], returns=["n", "c"])
    elif kind == "text":
        node, types = helper.make_node("Identity", ["x"], ["y"]), (TensorProto.STRING, TensorProto.STRING)
        save(path, node, types=types)
    elif kind == "size":
        node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
        save(path, node)
    elif kind == "flat":
        save(path, helper.make_node("Flatten", ["x"], ["y"]), returns=["n", "k"])
    elif kind == "fails":
        save(path, helper.make_node("Add", ["x", "w"], ["y"]), w=np.ones((1, 1, 7, 7), "float32"))
    elif kind == "bytes":
        node, types = helper.make_node("Identity", ["x"], ["y"]), (TensorProto.UINT8, TensorProto.UINT8)
        save(path, node, types=types)
    elif kind == "garbage":
        path.write_bytes(b"no model")
    else:
        save_mean(path, 1)


@pytest.mark.parametrize(
    "kind, params, problem",
    [
        ("inputs", {}, "has 2 inputs and 1 outputs"),
        ("rank", {}, "must take numbers of the shape 1 x bands x rows x columns"),
        ("text", {}, "must take numbers"),
        ("size", {}, "returns 1 bands of 256 x 256 pixels for 512 x 512"),
        ("flat", {}, "must return numbers of the shape"),
        ("fails", {}, "the model cannot be run on 1 x 512 x 512 pixels"),
        ("bytes", {}, "the model takes uint8, and the raster has int16"),
        ("garbage", {}, "m.onnx cannot be loaded"),
        ("mean", {"bands": [2]}, "the raster has no band 2; it has 1"),
        ("mean", {"bands": [1, 1]}, "the model takes 1 bands, and gets 2"),
        ("mean", {"band_names": ["a", "b"]}, "band_names: there are 2, and the model returns 1 bands"),
        ("mean", {"nodata": 7}, "nodata: 7 is a result of the model"),
        ("mean", {"path": "bronze/vrt.tif"}, "is not a TIFF file"),
        ("mean", {"path": "bronze/nowhere.tif"}, "has no CRS or a rotated grid"),
        ("mean", {"model": "/etc/passwd"}, "outside of the storage zones"),
        ("mean", {"overlap": -1}, "greater than or equal to 0"),
    ],
)
async def test_what_cannot_be_predicted_fails_for_good(
    storage: Path, kind: str, params: dict[str, Any], problem: str
) -> None:
    bronze = storage / "bronze"
    write_tiff(bronze / "a.tif", np.full((20, 20), 7, "int16"), nodata=NODATA)
    write_tiff(bronze / "nowhere.tif", crs=None)
    (bronze / "vrt.tif").write_text(VRT)
    save_wrong(bronze / "m.onnx", kind)
    result = await run(params)
    assert result.permanent, result.error_message
    assert problem in (result.error_message or "")


async def test_overlap_and_nodata_must_suit_the_model(storage: Path) -> None:
    write_tiff(storage / "bronze" / "a.tif", pixels((60, 300)), nodata=NODATA)
    save_convolution(storage / "bronze" / "m.onnx", side=32)
    assert "leave nothing of the 32 x 32" in ((await run({"overlap": 16})).error_message or "")
    save_classifier(storage / "bronze" / "m.onnx", 1)
    assert "choose a value for them" in ((await run({})).error_message or "")
    assert "0.5 is no value of int64" in ((await run({"nodata": 0.5})).error_message or "")


@pytest.mark.parametrize("place", ["weights.bin", "../weights.bin", "/etc/passwd"])
async def test_a_model_reads_no_other_files(storage: Path, place: str) -> None:
    bronze = storage / "bronze"
    write_tiff(bronze / "a.tif", np.ones((20, 20), "int16"))
    for folder in (bronze, storage):
        (folder / "weights.bin").write_bytes(np.ones(1, "float32").tobytes())
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", place), ("length", "4")):
        weights.external_data.add(key=key, value=value)
    add = model([helper.make_node("Add", ["x", "w"], ["y"])], ANY, ANY, (TensorProto.FLOAT, TensorProto.FLOAT))
    add.graph.initializer.append(weights)
    (bronze / "m.onnx").write_bytes(add.SerializeToString())
    result = await run({})
    assert result.permanent
    assert "m.onnx cannot be loaded" in (result.error_message or "")


async def test_another_attempt_computes_only_what_is_missing(storage: Path) -> None:
    write_tiff(storage / "bronze" / "a.tif", pixels((40, 2100)), nodata=NODATA)
    save_convolution(storage / "bronze" / "m.onnx")
    saved: list[Checkpoint] = []

    def fail_later(checkpoint: Checkpoint) -> None:
        saved.append(checkpoint)
        if len(saved) == 2:
            raise OSError("the disk is full")

    assert not (await run({"overlap": 1}, checkpoint_sink=fail_later)).success
    resumed: list[Checkpoint] = []
    again = await run({"overlap": 1}, retry_count=1, checkpoint_sink=resumed.append)
    assert again.success
    total = saved[0].data["total"]
    assert [checkpoint.data["done"] for checkpoint in saved] == [1, 2]
    assert [checkpoint.data["done"] for checkpoint in resumed] == list(range(3, total + 1))


async def test_another_model_begins_again(storage: Path) -> None:
    values = pixels((40, 1100), holes=False)
    write_tiff(storage / "bronze" / "a.tif", values)
    save_convolution(storage / "bronze" / "m.onnx")

    def fail(_: Checkpoint) -> None:
        raise OSError("the disk is full")

    assert not (await run({"overlap": 1}, checkpoint_sink=fail)).success
    save_convolution(storage / "bronze" / "m.onnx", factor=2)
    [result], _ = read(storage, await output(overlap=1))
    np.testing.assert_allclose(result, 2 * convolved(values, np.ones(values.shape, bool)), rtol=1e-5)


# The extra.


def test_the_telemetry_of_the_runtime_is_off() -> None:
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


WITHOUT_ONNX = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())

from dagmaster.errors import Misconfigured
from dagmaster.handlers import load_handlers, registry

load_handlers(["dagmaster.handlers.raster"])
try:
    load_handlers(["dagmaster.handlers.ml"])
except Misconfigured as error:
    print(error)
print("ml_predict" in registry.names())
"""


def test_a_worker_without_the_extra_does_not_take_the_handler_and_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_ONNX], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "the handlers of dagmaster.handlers.ml need onnxruntime: install it with `pip install 'dagmaster[ml]'`",
        "False",
    ]


def test_a_worker_that_has_not_loaded_it_says_how() -> None:
    bare = Registry()
    bare.register(Handler("echo", lambda ctx: None))
    with pytest.raises(UnknownHandler, match=r"pip install 'dagmaster\[ml\]'` and load dagmaster.handlers.ml"):
        bare.get("ml_predict")
    assert OPTIONAL_HANDLERS["ml_"] == (ml.__name__, "ml")
    loaded = Registry()
    load_handlers([ml.__name__], loaded)
    assert loaded.get("ml_predict").isolation == "process"
