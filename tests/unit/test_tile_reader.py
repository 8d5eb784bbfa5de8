"""The reader of tiles draws all tiles of a raster with the same range of values."""

from pathlib import Path
from typing import Any

import pytest
from rasters import write_tiff

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
