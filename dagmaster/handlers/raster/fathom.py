"""Flood tiles: one file for each tile and return period becomes one file for each grid cell, with bands."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from dagmaster.errors import Invalid
from dagmaster.geo.flood.names import DEFAULT_PATTERN, FloodTile, NamePattern, Place, take_inventory
from dagmaster.geo.flood.stack import (
    CellGrid,
    StackFiles,
    arrange_stacks,
    check_place,
    describe_stack,
    find_cell_grid,
)
from dagmaster.geo.raster.header import Header
from dagmaster.geo.raster.image import resolve_image
from dagmaster.geo.raster.mosaic import Mosaic
from dagmaster.geo.raster.profiles import RasterType, Tier, choose_profile
from dagmaster.geo.raster.reduction import Reduction
from dagmaster.geo.stac.items import make_collection
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import ItemOptions, Params, Reference, invalid_is_permanent, open_zones
from dagmaster.handlers.raster.cog import CogOutput, store_image
from dagmaster.handlers.raster.containers import MAX_LISTED, catalogue
from dagmaster.handlers.raster.mount import mount_reference
from dagmaster.handlers.raster.stac import MAX_ITEMS, CollectionVersionParams, describe_cog_item
from dagmaster.handlers.registry import handler
from dagmaster.storage import LocalFile, Storage

RETURN_PERIODS = (5, 10, 20, 50, 100, 200, 500, 1000)
MAX_RETURN_PERIODS = 32
MAX_TILES = 4000
FILES_AT_ONCE = 8


def _unique(numbers: Sequence[int]) -> Sequence[int]:
    if len(set(numbers)) < len(numbers):
        raise ValueError("a return period is there twice")
    return numbers


Years = Annotated[int, Field(ge=1, le=999_999)]
ReturnPeriods = Annotated[Sequence[Years], Field(min_length=1, max_length=MAX_RETURN_PERIODS), AfterValidator(_unique)]


class InventoryParams(Params):
    """`folder` is a zone or a folder in it. The tiles are dealt to batches, to fan out over."""

    folder: Reference
    pattern: str = DEFAULT_PATTERN
    return_periods: ReturnPeriods = RETURN_PERIODS
    batch_size: Annotated[int, Field(ge=1, le=MAX_TILES)] = 20


class InventoryOutput(BaseModel):
    """`scenarios` says by name what the placeholders of the pattern stand for."""

    batches: list[list[FloodTile]]
    scenarios: dict[str, dict[str, str]]
    return_periods: list[int]
    tile_count: int
    skipped_files: int


@handler("fathom_tile_inventory", params=InventoryParams)
async def fathom_tile_inventory(ctx: HandlerContext, params: InventoryParams) -> InventoryOutput:
    """Find the flood tiles of a folder by the names of their files. Each needs a file for each return period."""
    with invalid_is_permanent():
        pattern = NamePattern(params.pattern)
        listed = await open_zones().list(params.folder, limit=MAX_LISTED + 1)
        if len(listed) > MAX_LISTED:
            raise Invalid(f"{params.folder} has more than {MAX_LISTED} files: name a folder in it")
        paths = [file.reference for file in listed]
        inventory = await asyncio.to_thread(take_inventory, paths, pattern, params.return_periods)
        tiles = inventory.tiles
        if not tiles:
            raise Invalid(f"no file of {params.folder} has a name such as {params.pattern}")
        if len(tiles) > MAX_TILES:
            raise Invalid(f"{params.folder} has {len(tiles)} tiles, a job takes {MAX_TILES}: name a folder in it")
    size = params.batch_size
    return InventoryOutput(
        batches=[tiles[start : start + size] for start in range(0, len(tiles), size)],
        scenarios=inventory.scenarios,
        return_periods=list(params.return_periods),
        tile_count=len(tiles),
        skipped_files=inventory.skipped,
    )


class StackParams(Params):
    """With `folder`, each stack is also stored there as a file."""

    tiles: Annotated[list[FloodTile], Field(min_length=1, max_length=MAX_TILES)]
    return_periods: ReturnPeriods = RETURN_PERIODS
    folder: str | None = None


class Stack(FloodTile):
    """A tile whose files fit together. `header` is that of the stack, `stored` the file, if there is one."""

    header: Header
    stored: CogOutput | None = None


class StackOutput(BaseModel):
    stacks: list[Stack]


@handler("fathom_band_stack", params=StackParams, isolation="process")
def fathom_band_stack(ctx: HandlerContext, params: StackParams) -> StackOutput:
    """Check that the files of each tile are single bands of one grid, and describe the stack of them.

    The pixels are read when the tiles are merged, once.
    """
    stacks = []
    with invalid_is_permanent():
        for number, tile in enumerate(params.tiles, 1):
            stacks.append(_stack(ctx, params, tile))
            ctx.progress(number, len(params.tiles), "tiles stacked")
    return StackOutput(stacks=stacks)


def _stack(ctx: HandlerContext, params: StackParams, tile: FloodTile) -> Stack:
    storage, bands = open_zones(), band_names(params.return_periods)
    files = _fetch(ctx, storage, tile)
    header = describe_stack(files, bands)
    check_place(header, tile.place)
    stored = None
    if params.folder is not None:
        target = f"{params.folder}/{tile.scenario}_{tile.place.name}.tif"
        stored = _write(ctx, storage, arrange_stacks([files], bands), target, "nearest")
    return Stack(**dict(tile), header=header, stored=stored)


def band_names(return_periods: Iterable[int]) -> list[str]:
    return [f"1in{years}" for years in return_periods]


def _fetch(ctx: HandlerContext, storage: Storage, tile: FloodTile) -> StackFiles:
    """The files of a tile on this machine: as they are, or copies, which have names of their own."""
    paths, missing = [], {}
    for reference in tile.files:
        place = storage.locate(reference)
        is_local = isinstance(place, LocalFile)
        path = storage.local_path(reference if is_local else mount_reference(ctx, place.reference))
        paths.append(path)
        if not is_local and not path.exists():
            missing[reference] = path
    if missing:
        asyncio.run(_copy(storage, missing))
    return StackFiles(paths=paths, names=tile.files)


async def _copy(storage: Storage, files: dict[str, Path]) -> None:
    room = asyncio.Semaphore(FILES_AT_ONCE)

    async def copy(reference: str, path: Path) -> None:
        async with room:
            await storage.copy(reference, str(path))

    await asyncio.gather(*(copy(reference, path) for reference, path in files.items()))


def _write(ctx: HandlerContext, storage: Storage, mosaic: Mosaic, target: str, overviews: Reduction) -> CogOutput:
    """In parallel whatever the size: GDAL's driver reads bands of many files one after the other, several times."""
    profile = choose_profile(RasterType.MULTISPECTRAL, Tier.ANALYSIS, mosaic.dtypes[0], has_nodata=True)
    profile = profile.model_copy(update={"resampling": "nearest", "overview_resampling": overviews})
    return store_image(
        ctx, storage, resolve_image(mosaic, profile.resampling), profile, target=target, parallel_above_mb=0
    )


class GridParams(Params):
    """`stacks` are the outputs of fathom_band_stack."""

    stacks: Annotated[list[Stack], Field(min_length=1, max_length=MAX_TILES)]
    cell_degrees: Annotated[int, Field(ge=1, le=90)] = 5


class Cell(CellGrid):
    """The tiles of one scenario in one square of whole degrees, named after its south-west corner."""

    key: str
    scenario: str
    place: Place
    tiles: list[FloodTile]


class GridOutput(BaseModel):
    cells: list[Cell]
    cell_count: int


@handler("fathom_grid_inventory", params=GridParams)
def fathom_grid_inventory(ctx: HandlerContext, params: GridParams) -> GridOutput:
    """Group the tiles by grid cells. Tiles of a cell that do not fit together fail the task, with all reasons."""
    groups: dict[tuple[str, Place], list[Stack]] = {}
    for stack in params.stacks:
        groups.setdefault((stack.scenario, stack.place.cell(params.cell_degrees)), []).append(stack)
    with invalid_is_permanent():
        if len(groups) > MAX_ITEMS:
            raise Invalid(f"there are {len(groups)} cells, a catalogue takes {MAX_ITEMS} at once: make cells larger")
        cells = [_cell(scenario, place, stacks) for (scenario, place), stacks in groups.items()]
    return GridOutput(cells=cells, cell_count=len(cells))


def _cell(scenario: str, place: Place, stacks: Sequence[Stack]) -> Cell:
    return Cell(
        **dict(find_cell_grid([stack.header for stack in stacks])),
        key=f"{scenario} {place.name}",
        scenario=scenario,
        place=place,
        tiles=[FloodTile(**stack.model_dump(include=set(FloodTile.model_fields))) for stack in stacks],
    )


class MergeParams(Params):
    """`overviews` is nearest unless all values are depths: the average of a depth and a code is neither."""

    cell: Cell
    return_periods: ReturnPeriods = RETURN_PERIODS
    overviews: Reduction = "nearest"
    folder: str | None = None


class MergeOutput(BaseModel):
    key: str
    scenario: str
    place: Place
    tile_count: int
    file: CogOutput


@handler("fathom_spatial_merge", params=MergeParams, isolation="process")
def fathom_spatial_merge(ctx: HandlerContext, params: MergeParams) -> MergeOutput:
    """Stack and merge the tiles of a cell in one pass, as a COG with a band for each return period.

    Another attempt goes on with the parts that are made.
    """
    storage, cell = open_zones(), params.cell
    folder = params.folder or f"silver/flood/{ctx.job_id}/{ctx.retry_count}"
    with invalid_is_permanent():
        stacks = [_fetch(ctx, storage, tile) for tile in cell.tiles]
        mosaic = arrange_stacks(stacks, band_names(params.return_periods))
        target = f"{folder}/{cell.scenario}_{cell.place.name}.tif"
        made = _write(ctx, storage, mosaic, target, params.overviews)
    _remove_copies(storage, cell, stacks)
    return MergeOutput(key=cell.key, scenario=cell.scenario, place=cell.place, tile_count=len(cell.tiles), file=made)


def _remove_copies(storage: Storage, cell: Cell, stacks: Sequence[StackFiles]) -> None:
    """One cell after the other: all tiles of a job may be larger than this machine's disk."""
    for tile, files in zip(cell.tiles, stacks, strict=True):
        for reference, path in zip(tile.files, files.paths, strict=True):
            if not isinstance(storage.locate(reference), LocalFile):
                path.unlink(missing_ok=True)


class RegisterParams(CollectionVersionParams):
    """`merged` are the outputs of fathom_spatial_merge."""

    merged: Annotated[list[MergeOutput], Field(min_length=1, max_length=MAX_ITEMS)]
    acquired_at: datetime | None = None
    title: str | None = None
    target: str | None = None


@handler("fathom_stac_register", params=RegisterParams)
async def fathom_stac_register(ctx: HandlerContext, params: RegisterParams) -> dict[str, Any]:
    """Describe each merged file as a STAC item whose bands are the return periods, and write the index of the files.

    They enter the catalogue with the asset's version, when the job completes.
    """
    with invalid_is_permanent():
        items = [_item(ctx, params, merged) for merged in params.merged]
        collection = make_collection(params.collection_id, title=params.title)
        return await catalogue(ctx, collection, items, params.target)


def _item(ctx: HandlerContext, params: RegisterParams, merged: MergeOutput) -> dict[str, Any]:
    title = f"{params.title or 'Flood depth'}: {merged.scenario} {merged.place.name}"
    item_id = f"{params.version_id or ctx.job_id}-{merged.scenario}-{merged.place.name}"
    options = ItemOptions(acquired_at=params.acquired_at, title=title)
    return describe_cog_item(ctx, params, options, merged.file, item_id)
