"""Compress the blocks of one superblock and its overviews, and store them as files in a work folder."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from pydantic import BaseModel

from dagmaster.geo.raster.encoding import Encoded, Encoding, encode
from dagmaster.geo.raster.image import Derivation, Image, ImageSource, open_derived
from dagmaster.geo.raster.pyramid import Pyramid, Superblock
from dagmaster.geo.raster.reduction import Pixels, Reduction, halve
from dagmaster.geo.raster.statistics import Moments

# Source blocks are needed by one superblock, or by neighbours that follow soon.
SOURCE_CACHE_MB: Final = 64


class WriteJob(BaseModel, frozen=True):
    """Everything that a process needs to make any superblock of a file."""

    source: ImageSource
    encoding: Encoding
    pyramid: Pyramid
    reduction: Reduction
    folder: Path


class BlockSizes(BaseModel, frozen=True):
    """Sizes of the blocks of one level in bytes, row by row; each mask block follows its image block."""

    columns: int
    image: list[int]
    mask: list[int] | None = None


class SuperblockIndex(BaseModel, frozen=True):
    """The content of a superblock's file: the blocks of its levels, then the pixels for the next stage."""

    levels: list[BlockSizes]
    next_shape: tuple[int, int, int] | None = None
    next_offset: int = 0
    statistics: list[Moments] = []

    def size_bytes(self, pixel_bytes: int) -> int:
        blocks = sum(sum(level.image) + sum(level.mask or ()) for level in self.levels)
        if self.next_shape is None:
            return blocks
        _, height, width = self.next_shape
        return blocks + height * width * pixel_bytes


def data_path(folder: Path, superblock: Superblock) -> Path:
    return folder / f"{superblock.name}.bin"


def index_path(folder: Path, superblock: Superblock) -> Path:
    """Exists only when the superblock is complete."""
    return folder / f"{superblock.name}.json"


def read_index(folder: Path, superblock: Superblock) -> SuperblockIndex:
    return SuperblockIndex.model_validate_json(index_path(folder, superblock).read_bytes())


class SuperblockMaker:
    def __init__(self, job: WriteJob, image: Image) -> None:
        self._job, self._image = job, image

    @classmethod
    @contextmanager
    def open(cls, job: WriteJob, derivation: Derivation | None = None) -> Iterator[Self]:
        """Keeps the source open between superblocks."""
        with open_derived(job.source, derivation, SOURCE_CACHE_MB) as image:
            yield cls(job, image)

    def make(self, superblock: Superblock) -> None:
        job = self._job
        pixels = self._read(superblock) if superblock.stage == 0 else self._gather(superblock)
        statistics = _moments(pixels, job.encoding) if superblock.stage == 0 else []
        has_more = superblock.stage + 1 < job.pyramid.stages
        part = _unique(data_path(job.folder, superblock))
        with part.open("wb") as file:
            levels = []
            for _ in job.pyramid.levels_of(superblock.stage):
                levels.append(
                    _store(encode(pixels, job.encoding), pixels.bands.shape[2], job.pyramid.block, file.write)
                )
                pixels = halve(pixels, job.reduction, nodata=job.encoding.nodata, alpha=job.encoding.alpha)
            offset = file.tell()
            if has_more:
                for band in (*pixels.bands, *(() if pixels.mask is None else (pixels.mask,))):
                    file.write(np.ascontiguousarray(band).data)
        part.replace(data_path(job.folder, superblock))
        index = SuperblockIndex(
            levels=levels,
            next_shape=pixels.bands.shape if has_more else None,
            next_offset=offset,
            statistics=statistics,
        )
        part = _unique(index_path(job.folder, superblock))
        part.write_text(index.model_dump_json())
        part.replace(index_path(job.folder, superblock))

    def _read(self, superblock: Superblock) -> Pixels:
        encoding, part = self._job.encoding, self._job.pyramid.part(superblock)
        bands = self._image.read(part)
        if encoding.alpha_is_mask:
            return Pixels(bands[:-1], np.where(bands[-1] > 0, 255, 0).astype("uint8"))
        return Pixels(bands, self._image.read_mask(part) if encoding.has_mask else None)

    def _gather(self, superblock: Superblock) -> Pixels:
        """Assemble the pixels of the previous stage."""
        job, encoding = self._job, self._job.encoding
        part = job.pyramid.part(superblock)
        bands = np.empty((encoding.count, part.height, part.width), encoding.dtype)
        mask = np.empty((part.height, part.width), "uint8") if encoding.has_mask else None
        factor = 2**job.pyramid.depth
        for source in job.pyramid.sources(superblock):
            pixels = _load(job, source)
            top = source.row * (job.pyramid.down // factor) - part.row
            left = source.column * (job.pyramid.across // factor) - part.column
            bottom, right = top + pixels.bands.shape[1], left + pixels.bands.shape[2]
            bands[:, top:bottom, left:right] = pixels.bands
            if mask is not None:
                mask[top:bottom, left:right] = pixels.mask
        return Pixels(bands, mask)


def _load(job: WriteJob, superblock: Superblock) -> Pixels:
    index = read_index(job.folder, superblock)
    assert index.next_shape is not None
    count, height, width = index.next_shape
    dtype = np.dtype(job.encoding.dtype)
    with data_path(job.folder, superblock).open("rb") as file:
        file.seek(index.next_offset)
        bands = np.fromfile(file, dtype, count * height * width).reshape(count, height, width)
        mask = np.fromfile(file, "uint8", height * width).reshape(height, width) if job.encoding.has_mask else None
    return Pixels(bands, mask)


def _store(encoded: Encoded, width: int, block: int, write: Callable[[bytes], Any]) -> BlockSizes:
    for number, data in enumerate(encoded.blocks):
        write(data)
        if encoded.masks is not None:
            write(encoded.masks[number])
    return BlockSizes(
        columns=-(-width // block),
        image=[len(data) for data in encoded.blocks],
        mask=None if encoded.masks is None else [len(data) for data in encoded.masks],
    )


def _moments(pixels: Pixels, encoding: Encoding) -> list[Moments]:
    """The statistics of the valid pixels of each band."""
    shared = pixels.mask if encoding.alpha is None else pixels.bands[encoding.alpha]
    return [
        _moments_of(band, None if number == encoding.alpha else shared, encoding.nodata)
        for number, band in enumerate(pixels.bands)
    ]


def _moments_of(band: Any, shared: Any | None, nodata: float | None) -> Moments:
    valid = np.ones(band.shape, bool) if shared is None else shared > 0
    if band.dtype.kind == "f":
        valid &= np.isfinite(band)
    if nodata is not None and nodata == nodata:  # NaN is not equal to itself
        valid &= band != nodata
    moments = Moments()
    moments.add(band.reshape(-1) if valid.all() else band[valid], band.size)
    return moments


def _unique(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")
