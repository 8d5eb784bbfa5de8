"""Write a cloud-optimised GeoTIFF in parallel and in bounded memory, continuing an interrupted attempt."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from dagmaster.geo.raster.encoding import encoding_of, template_of
from dagmaster.geo.raster.image import Derivation, ImageSource, open_derived
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.pyramid import LARGEST_SUPERBLOCK, MB, Pyramid, Superblock, divide
from dagmaster.geo.raster.statistics import BandStatistics, Moments
from dagmaster.geo.raster.superblock import SuperblockIndex, WriteJob, data_path, index_path, read_index
from dagmaster.geo.raster.superblock_pool import open_pool
from dagmaster.geo.raster.tiff import LARGEST_CLASSIC, LEADER, Directory, Level, lay_out

OnSuperblock = Callable[[int, int], None]

# The memory of Python and the libraries before a process reads a pixel.
PROCESS_BYTES: Final = 80 * MB
LEAST_WORKING_BYTES: Final = 40 * MB
DEFAULT_MEMORY_MB: Final = 600


@dataclass(frozen=True, slots=True)
class Written:
    sha256: str
    statistics: list[BandStatistics]
    resumed: int


def write_cog(
    source: ImageSource,
    target: Path,
    profile: Profile,
    folder: Path,
    *,
    processes: int = 1,
    memory_mb: int = DEFAULT_MEMORY_MB,
    on_superblock: OnSuperblock | None = None,
    pyramid: Pyramid | None = None,
    largest_superblock: int = LARGEST_SUPERBLOCK,
    derivation: Derivation | None = None,
    largest_classic: int = LARGEST_CLASSIC,
) -> Written:
    """Write `target`. `folder` keeps the finished superblocks; the same call continues with them.

    There are fewer processes where `memory_mb`, that of all together, has no room for more. `on_superblock` gets how
    many superblocks are done and how many there are, and may raise to stop. With a `derivation`, the file is what that
    makes of the source, in this process alone.
    """
    processes, working_bytes = share_memory(memory_mb, processes if derivation is None else 1)
    with open_derived(source, derivation) as image:
        encoding = encoding_of(image, profile)
        template = template_of(image, encoding)
        shape = image.dataset.block_shapes[0] if source.warp is None and derivation is None else None
        pyramid = pyramid or divide(
            image.width,
            image.height,
            encoding.pixel_bytes,
            memory_bytes=working_bytes,
            source_block=shape,
            largest=largest_superblock,
        )
    reduction = "nearest" if profile.overview_resampling == "nearest" else "average"
    job = WriteJob(source=source, encoding=encoding, pyramid=pyramid, reduction=reduction, folder=folder)
    _prepare(job, "" if derivation is None else derivation.identity)
    resumed = _make(job, processes, on_superblock, derivation)
    digest = _assemble(job, template, target, largest_classic)
    return Written(digest, _statistics(job), resumed)


def share_memory(memory_mb: int, processes: int) -> tuple[int, int]:
    """The number of processes that fit beside the assembling one, and the memory of each for its pixels."""
    available = memory_mb * MB - PROCESS_BYTES
    processes = max(min(processes, available // (PROCESS_BYTES + LEAST_WORKING_BYTES)), 1)
    own = PROCESS_BYTES if processes > 1 else 0
    return processes, max(available // processes - own, 0)


def _prepare(job: WriteJob, derived_by: str) -> None:
    """Keep what an earlier attempt at the same file has made, and nothing else."""
    job.folder.mkdir(parents=True, exist_ok=True)
    identity = f"{job.model_dump_json(exclude={'folder'})}\n{job.source.state_of_files()}\n{derived_by}\n"
    record = job.folder / "job.txt"
    if record.exists() and record.read_text() == identity:
        return
    shutil.rmtree(job.folder)
    job.folder.mkdir()
    record.write_text(identity)


def _make(job: WriteJob, processes: int, on_superblock: OnSuperblock | None, derivation: Derivation | None) -> int:
    stages = [list(job.pyramid.superblocks(stage)) for stage in range(job.pyramid.stages)]
    missing = [[each for each in stage if not _is_made(job, each)] for stage in stages]
    total = sum(map(len, stages))
    resumed = done = total - sum(map(len, missing))
    if done == total:
        return resumed
    with open_pool(job, min(processes, len(stages[0])), derivation) as make:
        for _ in chain.from_iterable(make(stage) for stage in missing):
            done += 1
            if on_superblock is not None:
                on_superblock(done, total)
    return resumed


def _is_made(job: WriteJob, superblock: Superblock) -> bool:
    """After a power cut, the index may exist without the blocks."""
    if not index_path(job.folder, superblock).exists():
        return False
    index, data = read_index(job.folder, superblock), data_path(job.folder, superblock)
    return data.exists() and data.stat().st_size == index.size_bytes(job.encoding.pixel_bytes)


def _statistics(job: WriteJob) -> list[BandStatistics]:
    bands = [Moments() for _ in range(job.encoding.count)]
    for superblock in job.pyramid.superblocks(0):
        for band, moments in zip(bands, read_index(job.folder, superblock).statistics, strict=True):
            band.merge(moments)
    return [band.statistics() for band in bands]


def _assemble(job: WriteJob, template: Sequence[Directory], target: Path, largest_classic: int) -> str:
    """Write directories, then the blocks from the smallest level to the largest; returns the checksum."""
    places = [_places(job, level) for level in range(len(job.pyramid.levels))]
    levels = [
        Level(width, height, place.sizes.reshape(-1), None if place.masks is None else place.masks.reshape(-1))
        for (width, height), place in zip(job.pyramid.levels, places, strict=True)
    ]
    layout = lay_out(template, levels, largest_classic=largest_classic)
    digest = sha256()
    with target.open("wb") as file:
        for data in chain([layout.header], *(_blocks(job, place) for place in reversed(places))):
            file.write(data)
            digest.update(data)
    if target.stat().st_size != layout.size_bytes:
        raise RuntimeError(f"{target.name} has {target.stat().st_size} bytes instead of {layout.size_bytes}")
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Places:
    """The locations of a level's blocks: rows x columns of superblocks, offsets and sizes."""

    superblocks: list[Superblock]
    owners: Any
    offsets: Any
    sizes: Any
    masks: Any | None


def _places(job: WriteJob, level: int) -> _Places:
    pyramid = job.pyramid
    stage = level // pyramid.depth
    shape = pyramid.grid(level)
    reduced = 2 ** (level - stage * pyramid.depth) * pyramid.block
    down, across = pyramid.down // reduced, pyramid.across // reduced
    owners, offsets, sizes = (np.zeros(shape, "int64") for _ in range(3))
    masks = np.zeros(shape, "int64") if job.encoding.has_mask else None
    superblocks = list(pyramid.superblocks(stage))
    for number, superblock in enumerate(superblocks):
        index = read_index(job.folder, superblock)
        blocks = index.levels[level - stage * pyramid.depth]
        begin, stored = _offsets(index, level - stage * pyramid.depth)
        rows = slice(superblock.row * down, superblock.row * down + len(blocks.image) // blocks.columns)
        columns = slice(superblock.column * across, superblock.column * across + blocks.columns)
        owners[rows, columns] = number
        offsets[rows, columns] = (begin + np.cumsum(stored) - stored).reshape(-1, blocks.columns)
        sizes[rows, columns] = np.reshape(blocks.image, (-1, blocks.columns))
        if masks is not None:
            masks[rows, columns] = np.reshape(blocks.mask or [], (-1, blocks.columns))
    return _Places(superblocks, owners, offsets, sizes, masks)


def _offsets(index: SuperblockIndex, level: int) -> tuple[int, Any]:
    """Where the blocks of a level start in the superblock's file, and the size of each with its mask."""
    stored = [np.array(blocks.image) + np.array(blocks.mask or 0) for blocks in index.levels]
    return int(sum(sizes.sum() for sizes in stored[:level])), stored[level]


def _blocks(job: WriteJob, places: _Places) -> Iterator[bytes]:
    """Row by row, each block preceded by its size and followed by a copy of its last four bytes."""
    for row in range(places.owners.shape[0]):
        yield from _row_blocks(job, places, row)


def _row_blocks(job: WriteJob, places: _Places, row: int) -> Iterator[bytes]:
    owners = places.owners[row].tolist()
    with ExitStack() as stack:
        files = {
            number: stack.enter_context(data_path(job.folder, places.superblocks[number]).open("rb"))
            for number in dict.fromkeys(owners)
        }
        for column, number in enumerate(owners):
            file = files[number]
            file.seek(places.offsets[row, column])
            yield from _framed(file.read(places.sizes[row, column]))
            if places.masks is not None:
                yield from _framed(file.read(places.masks[row, column]))


def _framed(data: bytes) -> tuple[bytes, bytes, bytes]:
    return LEADER.pack(len(data)), data, data[-4:].rjust(4, b"\0")
