"""Load a model in ONNX format, and run it on windows of pixels."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from dagmaster.geo.errors import ModelRejected
from dagmaster.geo.raster.mosaic import GDAL_TYPES

INPUT_TYPES: Final = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    **{f"tensor({name})": name for name in ("float16", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")},
}
# Results of types that no raster has.
STORED_AS: Final = {"bool": "uint8", "float16": "float32"}
# Of onnxruntime; they have no class in common.
ERRORS: Final = (
    runtime.EPFail,
    runtime.Fail,
    runtime.InvalidArgument,
    runtime.InvalidGraph,
    runtime.InvalidProtobuf,
    runtime.NoModel,
    runtime.NoSuchFile,
    runtime.NotImplemented,
    runtime.RuntimeException,
)
SILENT: Final = 4

Size = tuple[int, int]


class Model:
    """Takes 1 x bands x rows x columns, and returns 1 x bands x rows x columns or 1 x rows x columns."""

    def __init__(self, path: Path, threads: int) -> None:
        """The model must be alone in its folder: it may refer to other files there, and to none elsewhere."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = SILENT  # Errors are raised as well.
        options.enable_cpu_mem_arena = False  # It would keep the memory of the largest window for good.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except ERRORS as error:
            raise ModelRejected(f"{path.name} cannot be loaded: {_first_line(error)}") from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise ModelRejected(
                f"{path.name} has {len(inputs)} inputs and {len(outputs)} outputs; it must have one of each"
            )
        [self._input] = inputs
        if len(self._input.shape) != 4 or self._input.type not in INPUT_TYPES:
            raise ModelRejected(
                f"{path.name} takes {self._input.type} of {self._input.shape}; it must take numbers of the shape "
                "1 x bands x rows x columns"
            )
        self.dtype = np.dtype(INPUT_TYPES[self._input.type])

    @property
    def band_count(self) -> int | None:
        """None if it takes any number."""
        return _fixed(self._input.shape[1])

    def window_size(self, default: Size) -> Size:
        """Rows and columns; the default where the model takes any number of them."""
        rows, columns = map(_fixed, self._input.shape[2:])
        return rows or default[0], columns or default[1]

    def run(self, pixels: Any) -> Any:
        """Bands x rows x columns, in a type that rasters have."""
        [result] = self._session.run(None, {self._input.name: pixels[np.newaxis]})
        name = getattr(getattr(result, "dtype", None), "name", type(result).__name__)
        kind = STORED_AS.get(name, name)
        if kind not in GDAL_TYPES or result.ndim not in (3, 4) or result.shape[0] != 1:
            shape = getattr(result, "shape", ())
            raise ModelRejected(
                f"the model returns {name} of the shape {_spelled(shape)}; it must return numbers of the shape "
                "1 x bands x rows x columns or 1 x rows x columns"
            )
        bands = result[0] if result.ndim == 4 else result
        return bands.astype(kind, copy=False)

    def probe(self, pixels: Any) -> Any:
        """As `run`, for the first time: what fails then is wrong with the model."""
        try:
            return self.run(pixels)
        except ERRORS as error:
            raise ModelRejected(
                f"the model cannot be run on {_spelled(pixels.shape)} pixels: {_first_line(error)}"
            ) from error


def _fixed(size: int | str | None) -> int | None:
    return size if isinstance(size, int) and size > 0 else None


def _spelled(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
