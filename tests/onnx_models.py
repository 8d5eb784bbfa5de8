"""Tiny models in ONNX format."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

KERNEL: Final = np.array([[1, 2, 0], [0, 3, 1], [2, 0, 1]], "float32")
ANY: Final = ["n", "c", "h", "w"]


def save(
    path: Path,
    *nodes: NodeProto,
    takes: list[Any] = ANY,
    returns: list[Any] = ANY,
    types: tuple[int, int] = (TensorProto.FLOAT, TensorProto.FLOAT),
    **weights: Any,
) -> Path:
    """From `x` to `y`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model(list(nodes), takes, returns, types, **weights).SerializeToString())
    return path


def model(
    nodes: list[NodeProto], takes: list[Any], returns: list[Any], types: tuple[int, int], **weights: Any
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", types[0], takes)],
        [helper.make_tensor_value_info("y", types[1], returns)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save_convolution(path: Path, side: int | None = None, pad: int = 1, factor: float = 1) -> Path:
    """Each pixel and its neighbours, of one band."""
    rows, columns = (side, side) if side else ("h", "w")
    node = helper.make_node("Conv", ["x", "kernel"], ["y"], pads=[pad] * 4)
    kernel = factor * KERNEL[np.newaxis, np.newaxis]
    return save(path, node, takes=["n", 1, rows, columns], returns=["n", 1, "i", "j"], kernel=kernel.astype("float32"))


def convolved(values: Any, valid: Any) -> Any:
    """The same in numpy, of the whole image at once. Pixels that are not valid, or outside, are 0."""
    height, width = values.shape
    padded = np.pad(np.where(valid, values, 0).astype("float32"), 1)
    return sum(
        KERNEL[row, column] * padded[row : row + height, column : column + width]
        for row in range(3)
        for column in range(3)
    )


def save_classifier(path: Path, bands: int) -> Path:
    """The number of the band with the largest value."""
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)
    types = (TensorProto.FLOAT, TensorProto.INT64)
    return save(path, node, takes=["n", bands, "h", "w"], returns=["n", "h", "w"], types=types)


def save_mean(path: Path, bands: int) -> Path:
    """The mean of all bands."""
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=1)
    return save(path, node, takes=["n", bands, "h", "w"], returns=["n", 1, "h", "w"])
