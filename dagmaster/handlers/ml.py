"""Run models on rasters.

Load it with `DAGMASTER_HANDLERS=dagmaster.handlers.ml`; it needs the extra `ml`.
"""

import asyncio
import os
from pathlib import Path, PurePosixPath
from typing import Final

from dagmaster.errors import Invalid
from dagmaster.geo.prediction.image import ModelRun, Prediction
from dagmaster.geo.prediction.model import Model
from dagmaster.geo.raster.cog import CogInfo, describe_cog
from dagmaster.geo.raster.header import read_header
from dagmaster.geo.raster.image import ImageSource, open_derived
from dagmaster.geo.raster.profiles import RasterType, Tier, choose_profile
from dagmaster.geo.raster.reduction import Reduction
from dagmaster.geo.raster.writer import write_cog
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import Params, Reference, invalid_is_permanent, open_zones
from dagmaster.handlers.raster.cog import CogOutput, default_target, fetch, record_superblocks, store_cog
from dagmaster.handlers.raster.mount import remove_work_folder, work_folder
from dagmaster.handlers.registry import handler
from dagmaster.settings import Settings, load_settings
from dagmaster.storage import Storage

MAX_MODEL_BYTES: Final = 2 * 1024**3
# Models take long: a checkpoint after some windows, not after hundreds.
SUPERBLOCK: Final = 1024


class PredictParams(Params, Prediction):
    """`model` is a file in ONNX format. By default overviews average floating-point results only."""

    path: Reference
    model: Reference
    target: str | None = None
    overviews: Reduction | None = None


class PredictOutput(CogOutput):
    model_hash: str


@handler("ml_predict", params=PredictParams, isolation="process")
def ml_predict(ctx: HandlerContext, params: PredictParams) -> PredictOutput:
    """Run a model on a raster, window by window, and store its results as a COG on the same grid.

    Another attempt goes on with the parts that are made.
    """
    storage, settings = open_zones(), load_settings()
    with invalid_is_permanent():
        target = params.target or default_target(ctx, f"{_stem(params.path)}_{_stem(params.model)}.tif")
        storage.locate(target)
        path = storage.local_path(fetch(ctx, params.path))
        read_header(path)  # Raises for a raster without a place or with a rotated grid, which would not stay.
        folder = work_folder(storage, ctx)
        model, checksum = _load(storage, params.model, folder, settings.raster_processes or os.cpu_count() or 1)
        prediction = Prediction(**params.model_dump(include=set(Prediction.model_fields)))
        run = ModelRun(model, checksum, prediction)
        local = folder / PurePosixPath(target).name
        info = _write(ctx, settings, ImageSource(path=path), run, local, params.overviews)
        made = store_cog(storage, local, info, target)
    remove_work_folder(folder)
    return PredictOutput(**dict(made), model_hash=f"sha256:{checksum}")


def _stem(reference: str) -> str:
    return PurePosixPath(reference.partition("?")[0]).stem


def _load(storage: Storage, reference: str, folder: Path, threads: int) -> tuple[Model, str]:
    """A copy in a folder of its own: models may refer to files beside them."""
    size = asyncio.run(storage.size(reference))
    if size > MAX_MODEL_BYTES:
        raise Invalid(f"{reference} has {size} bytes, a model has {MAX_MODEL_BYTES} at most")
    path = folder / "model" / PurePosixPath(storage.locate(reference).reference).name
    copied = asyncio.run(storage.copy(reference, str(path)))
    return Model(path, threads), copied.sha256


def _write(
    ctx: HandlerContext,
    settings: Settings,
    source: ImageSource,
    run: ModelRun,
    local: Path,
    overviews: Reduction | None,
) -> CogInfo:
    with open_derived(source, run) as image:
        dtype = image.dataset.dtypes[0]
    kind = RasterType.CONTINUOUS if dtype.startswith("float") else RasterType.CATEGORICAL
    profile = choose_profile(kind, Tier.ANALYSIS, dtype, has_nodata=True)
    written = write_cog(
        source,
        local,
        profile.model_copy(update={"overview_resampling": overviews or profile.overview_resampling}),
        local.parent / "superblocks",
        memory_mb=settings.raster_memory_mb,
        on_superblock=record_superblocks(ctx),
        largest_superblock=SUPERBLOCK,
        derivation=run,
    )
    return describe_cog(local, written)
