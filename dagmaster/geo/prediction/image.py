"""What a model makes of an image: an image on the same grid, computed window by window."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, Field
from rasterio.enums import ColorInterp, MaskFlags

from dagmaster.geo.errors import ModelRejected, RasterRejected
from dagmaster.geo.prediction.model import Model, Size
from dagmaster.geo.raster.header import Part, exact_name
from dagmaster.geo.raster.image import Image, ImageSource
from dagmaster.geo.raster.mosaic import Mosaic, open_mosaic
from dagmaster.geo.raster.validate import JsonFloat, fits

DEFAULT_BLOCK: Final = 512
MAX_BANDS: Final = 256
NEEDS_NODATA: Final = "nodata: the raster has pixels without data, and the model returns {}: choose a value for them"


class Prediction(BaseModel, frozen=True):
    """How a model is run on a raster.

    The model sees `block_size` pixels in each direction and `overlap` more on each side, of which the results are
    dropped. Pixels outside of the raster and pixels without data are `fill` for the model, and the results of pixels
    without data are `nodata`.
    """

    bands: Annotated[list[int], Field(min_length=1, max_length=MAX_BANDS)] | None = None
    block_size: Annotated[int, Field(ge=16, le=4096)] = DEFAULT_BLOCK
    overlap: Annotated[int, Field(ge=0, le=1024)] = 0
    fill: float = 0.0
    nodata: JsonFloat | None = None
    band_names: Annotated[list[str], Field(min_length=1, max_length=MAX_BANDS)] | None = None


class ModelRun:
    """The derivation of rasters by a model. `checksum` is that of its file."""

    def __init__(self, model: Model, checksum: str, prediction: Prediction) -> None:
        self._model, self._prediction = model, prediction
        self._first_result: Any = None
        self.identity = f"{checksum} {prediction.model_dump_json()}"

    @contextmanager
    def derive(self, image: Image) -> Iterator[Image]:
        """The images that it is asked for are the same one, opened again: what the model returns is known then."""
        windows = _Windows(self._model, self._prediction, image)
        result = self._first_result = windows.probe() if self._first_result is None else self._first_result
        nodata = _choose_nodata(self._prediction.nodata, result.dtype, _may_have_holes(image))
        empty = Mosaic(
            crs=exact_name(image.crs),
            transform=tuple(image.transform)[:6],
            width=image.width,
            height=image.height,
            dtypes=[result.dtype.name] * len(result),
            colours=["gray"] + ["undefined"] * (len(result) - 1),
            descriptions=_names(self._prediction.band_names, len(result)),
            palette=None,
            nodata=nodata,
            needs_mask=False,
            tiles=[],
        )
        with open_mosaic(empty) as dataset:
            yield _PredictedImage(dataset, image, windows, nodata)


class _Windows:
    """The pixels that the model takes at a time."""

    def __init__(self, model: Model, prediction: Prediction, image: Image) -> None:
        self._model, self._image = model, image
        self._overlap, self._fill = prediction.overlap, prediction.fill
        self._indexes = _choose_bands(model, prediction, image)
        side = prediction.block_size + 2 * prediction.overlap
        self._window = model.window_size((side, side))
        self.core: Size = (self._window[0] - 2 * self._overlap, self._window[1] - 2 * self._overlap)
        if min(self.core) < 1:
            raise ModelRejected(
                f"overlap: {self._overlap} pixels on each side leave nothing of the {self._window[0]} x "
                f"{self._window[1]} that the model takes"
            )
        _check_type([image.dataset.dtypes[index - 1] for index in self._indexes], model, prediction.fill)

    def probe(self) -> Any:
        shape = (len(self._indexes), *self._window)
        result = self._model.probe(np.full(shape, self._fill, self._model.dtype))
        if result.shape[1:] not in (self._window, self.core) or not 1 <= len(result) <= MAX_BANDS:
            raise ModelRejected(
                f"the model returns {result.shape[0]} bands of {result.shape[1]} x {result.shape[2]} pixels for "
                f"{self._window[0]} x {self._window[1]}; it must return 1 to {MAX_BANDS} bands of as many pixels, or "
                f"of {self.core[0]} x {self.core[1]}"
            )
        return result

    def predict(self, part: Part) -> tuple[Any, Any]:
        """The results, and where they are of valid pixels; None instead of results if there are no such pixels."""
        rows, columns = self._window
        top, left = part.row - self._overlap, part.column - self._overlap
        inside = _clipped(left, top, columns, rows, self._image)
        bands, valid = self._read(inside)
        row, column = inside.row - top, inside.column - left
        at = slice(row, row + inside.height), slice(column, column + inside.width)
        mask = np.zeros(self._window, bool)
        mask[at] = valid
        margin = self._overlap
        own = mask[margin : margin + part.height, margin : margin + part.width]
        if not own.any():
            return None, own
        pixels = np.full((len(self._indexes), rows, columns), self._fill, self._model.dtype)
        pixels[(slice(None), *at)] = np.where(valid, bands, pixels.dtype.type(self._fill))
        result = self._model.run(pixels)
        begin = margin if result.shape[1:] == self._window else 0
        return result[:, begin : begin + part.height, begin : begin + part.width], own

    def _read(self, part: Part) -> tuple[Any, Any]:
        """Of the bands for the model, and where all of them are valid."""
        dataset = self._image.dataset
        valid = self._image.read_mask(part) > 0
        bands = self._image.read(part)[[index - 1 for index in self._indexes]]
        for index, band in zip(self._indexes, bands, strict=True):
            nodata = dataset.nodatavals[index - 1]
            if nodata is not None and not math.isnan(nodata):
                valid &= band != nodata
            if band.dtype.kind == "f":
                valid &= np.isfinite(band)
        return bands, valid


class _PredictedImage(Image):
    def __init__(self, dataset: Any, image: Image, windows: _Windows, nodata: float | None) -> None:
        super().__init__(ImageSource(path=image.path), dataset)
        self._windows, self._nodata = windows, nodata

    def read(self, part: Part) -> Any:
        empty = 0 if self._nodata is None else self._nodata
        bands = np.full((self.dataset.count, part.height, part.width), empty, self.dataset.dtypes[0])
        for window in _divide(part, self._windows.core):
            result, valid = self._windows.predict(window)
            self._check(result, valid)
            if result is None:
                continue
            row, column = window.row - part.row, window.column - part.column
            place = bands[:, row : row + window.height, column : column + window.width]
            np.copyto(place, result, where=valid)
        return bands

    def _check(self, result: Any, valid: Any) -> None:
        """Pixels without data must not look like results, nor results like pixels without data."""
        if self._nodata is None and not valid.all():
            raise ModelRejected(NEEDS_NODATA.format(self.dataset.dtypes[0]))
        if self._nodata is not None and result is not None and (result[:, valid] == self._nodata).any():
            raise ModelRejected(f"nodata: {self._nodata:g} is a result of the model; choose another value")


def _divide(part: Part, size: Size) -> Iterator[Part]:
    rows, columns = size
    for row in range(part.row, part.row + part.height, rows):
        for column in range(part.column, part.column + part.width, columns):
            height, width = min(rows, part.row + part.height - row), min(columns, part.column + part.width - column)
            yield Part(column=column, row=row, width=width, height=height)


def _clipped(left: int, top: int, columns: int, rows: int, image: Image) -> Part:
    """What of a window is inside of the image."""
    column, row = max(left, 0), max(top, 0)
    right, bottom = min(left + columns, image.width), min(top + rows, image.height)
    return Part(column=column, row=row, width=right - column, height=bottom - row)


def _choose_bands(model: Model, prediction: Prediction, image: Image) -> list[int]:
    colours = image.dataset.colorinterp
    usable = [index for index, colour in enumerate(colours, 1) if colour != ColorInterp.alpha]
    bands = prediction.bands or usable
    missing = [index for index in bands if not 1 <= index <= len(colours)]
    if missing:
        raise RasterRejected(f"bands: the raster has no band {missing[0]}; it has {len(colours)}")
    if model.band_count not in (None, len(bands)):
        raise ModelRejected(f"the model takes {model.band_count} bands, and gets {len(bands)}; choose them with bands")
    return bands


def _check_type(kinds: Sequence[str], model: Model, fill: float) -> None:
    dtype = model.dtype
    if dtype.kind == "f":
        return
    wide = [kind for kind in kinds if not np.can_cast(kind, dtype)]
    if wide:
        raise ModelRejected(f"the model takes {dtype}, and the raster has {wide[0]}; convert one of them")
    if not fits(fill, dtype):
        raise ModelRejected(f"fill: {fill:g} is no value of {dtype}, which the model takes")


def _may_have_holes(image: Image) -> bool:
    flags = image.dataset.mask_flag_enums
    return image.has_mask or any(MaskFlags.all_valid not in of_band for of_band in flags)


def _choose_nodata(chosen: float | None, dtype: Any, has_holes: bool) -> float | None:
    if chosen is not None:
        if not fits(chosen, dtype):
            raise ModelRejected(f"nodata: {chosen:g} is no value of {dtype}, which the model returns")
        return chosen
    if dtype.kind == "f":
        return math.nan
    if has_holes:
        raise ModelRejected(NEEDS_NODATA.format(dtype))
    return None


def _names(names: list[str] | None, count: int) -> list[str | None]:
    if names is not None and len(names) != count:
        raise ModelRejected(f"band_names: there are {len(names)}, and the model returns {count} bands")
    return list(names) if names is not None else [None] * count
