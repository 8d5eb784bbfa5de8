"""One measured write of a COG: `python -m benchmarks.raster_write ours|gdal SOURCE TARGET CRS PROCESSES`.

The last line of its output is seconds and megabytes. The memory is that of all its processes together, with what they
share counted once.
"""

import sys
from pathlib import Path
from time import perf_counter

from benchmarks.memory import MB, PeakMemory
from dagmaster.geo.raster.cog import write_by_gdal
from dagmaster.geo.raster.image import resolve_image
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.writer import write_cog

PROFILE = Profile(compression="ZSTD", level=3, predictor=3, resampling="bilinear", overview_resampling="average")


def main() -> None:
    writer, source, target, crs, processes = sys.argv[1:]
    path = Path(target)
    with PeakMemory() as memory:
        began = perf_counter()
        image = resolve_image(Path(source), PROFILE.resampling, target_crs=crs or None)
        if writer == "ours":
            write_cog(image, path, PROFILE, path.with_suffix(".superblocks"), processes=int(processes))
        else:
            write_by_gdal(image, path, PROFILE)
        seconds = perf_counter() - began
    print(seconds, memory.bytes / MB)


if __name__ == "__main__":
    main()
