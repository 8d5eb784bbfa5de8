"""Raster handlers for a worker to be killed: they record each tile and wait at one while a file exists."""

import os
import time
from pathlib import Path
from typing import Any

from dagmaster.geo.raster.image import ImageSource
from dagmaster.geo.raster.tiling import write_tile
from dagmaster.handlers.raster import tiles

FOLDER = "ACCEPTANCE_TILES"
WAITS_BEFORE = 30


def write_noted_tile(source: ImageSource, target: Path, *options: Any) -> Any:
    folder = Path(os.environ[FOLDER])
    written = folder / "written.txt"
    while (folder / "gate").exists() and len(written.read_text().split()) >= WAITS_BEFORE:
        (folder / "waits").touch()
        time.sleep(0.01)
    info = write_tile(source, target, *options)
    with written.open("a") as file:
        file.write(f"{target.name}\n")
    return info


# Only in the worker: the test that starts it also imports this module.
if FOLDER in os.environ:
    vars(tiles)["write_tile"] = write_noted_tile
