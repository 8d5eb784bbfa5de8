"""One measured write of a COG: `python -m benchmarks.raster_write ours|gdal SOURCE TARGET CRS PROCESSES`.

The last line of its output is seconds and megabytes. The memory is that of all its processes together, with what they
share counted once.
"""

import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import psutil

from dagmaster.geo.raster.cog import write_by_gdal
from dagmaster.geo.raster.image import settle_image
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.writer import write_cog

PROFILE = Profile(compression="ZSTD", level=3, predictor=3, resampling="bilinear", overview_resampling="average")
POLL_SECONDS = 0.2
MB = 1024 * 1024


class PeakMemory:
    """The most that this process and its children had at once."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look)

    def __enter__(self) -> "PeakMemory":
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    def _look(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(POLL_SECONDS):
            self.bytes = max(self.bytes, sum(map(_memory, [me, *me.children(recursive=True)])))


def _memory(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def main() -> None:
    writer, source, target, crs, processes = sys.argv[1:]
    path = Path(target)
    with PeakMemory() as memory:
        began = perf_counter()
        image = settle_image(Path(source), PROFILE.resampling, target_crs=crs or None)
        if writer == "ours":
            write_cog(image, path, PROFILE, path.with_suffix(".superblocks"), processes=int(processes))
        else:
            write_by_gdal(image, path, PROFILE)
        seconds = perf_counter() - began
    print(seconds, memory.bytes / MB)


if __name__ == "__main__":
    main()
