"""The reader of tiles reads a bounded part of a raster, and draws all tiles with the same range of values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rasters import write_tiff

from dagmaster.errors import Invalid
from dagmaster.tiles import reader
from dagmaster.tiles.reader import CogReader
from dagmaster.tiles.sources import RasterSource


class Forgetful(dict[Any, Any]):
    """As if another thread emptied the full cache at once."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def test_a_range_is_known_while_another_thread_empties_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_known_ranges", Forgetful())
    with CogReader(RasterSource(str(write_tiff(tmp_path / "a.tif")), "a")) as raster:
        [(low, high)] = raster.ranges((1,))
    assert 0 < low < high < 64 * 48


@pytest.mark.parametrize("shape", [(20, 600), (600, 20)])
def test_a_long_raster_needs_overviews(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = write_tiff(tmp_path / "a.tif", np.zeros(shape, "uint8"))
    with pytest.raises(Invalid, match="no overviews"):
        CogReader(RasterSource(str(path), "a"))
