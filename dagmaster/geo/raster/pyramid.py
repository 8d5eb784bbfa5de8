"""The division of an image into levels of blocks, made by independent superblocks."""

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from dagmaster.geo.raster.header import Part
from dagmaster.geo.raster.validate import COG_BLOCK

LARGEST_SUPERBLOCK: Final = 4096
# Memory of one superblock: its pixels, their reductions and masks, the compressed blocks, and GDAL's own.
WORKING_COPIES: Final = 6
MB: Final = 1024 * 1024


class Superblock(BaseModel, frozen=True):
    """Its pixels are those of level `stage * depth`, and it makes the blocks of `depth` levels."""

    stage: int
    row: int
    column: int

    @property
    def name(self) -> str:
        return f"{self.stage}-{self.row}-{self.column}"


class Pyramid(BaseModel, frozen=True):
    """Superblocks have `across` x `down` pixels, block size times a power of two."""

    width: int
    height: int
    across: int
    down: int
    block: int = COG_BLOCK

    @property
    def levels(self) -> list[tuple[int, int]]:
        """Width and height, from the whole image to the first that fits into one block."""
        sizes = [(self.width, self.height)]
        while max(sizes[-1]) > self.block:
            width, height = sizes[-1]
            sizes.append((-(-width // 2), -(-height // 2)))
        return sizes

    @property
    def depth(self) -> int:
        """The number of levels for which a superblock has whole blocks."""
        return (min(self.across, self.down) // self.block).bit_length()

    @property
    def stages(self) -> int:
        return -(-len(self.levels) // self.depth)

    def levels_of(self, stage: int) -> range:
        return range(stage * self.depth, min((stage + 1) * self.depth, len(self.levels)))

    def superblocks(self, stage: int) -> Iterator[Superblock]:
        width, height = self.levels[stage * self.depth]
        for row in range(-(-height // self.down)):
            for column in range(-(-width // self.across)):
                yield Superblock(stage=stage, row=row, column=column)

    def part(self, superblock: Superblock) -> Part:
        """Its pixels, in its first level."""
        width, height = self.levels[superblock.stage * self.depth]
        column, row = superblock.column * self.across, superblock.row * self.down
        return Part(column=column, row=row, width=min(self.across, width - column), height=min(self.down, height - row))

    def sources(self, superblock: Superblock) -> Iterator[Superblock]:
        """The superblocks of the previous stage whose reductions are its pixels."""
        factor = 2**self.depth
        width, height = self.levels[(superblock.stage - 1) * self.depth]
        columns, rows = -(-width // self.across), -(-height // self.down)
        for row in range(superblock.row * factor, min((superblock.row + 1) * factor, rows)):
            for column in range(superblock.column * factor, min((superblock.column + 1) * factor, columns)):
                yield Superblock(stage=superblock.stage - 1, row=row, column=column)

    def grid(self, level: int) -> tuple[int, int]:
        """Rows and columns of blocks."""
        width, height = self.levels[level]
        return -(-height // self.block), -(-width // self.block)


def divide(
    width: int,
    height: int,
    pixel_bytes: int,
    *,
    memory_bytes: int,
    source_block: tuple[int, int] | None = None,
    largest: int = LARGEST_SUPERBLOCK,
) -> Pyramid:
    """Superblocks that fit into the memory of one process, at least one block each.

    `source_block` is rows and columns. Strips are as wide as the image; then superblocks are too, if they fit, because
    otherwise each strip would be decompressed once per superblock.
    """
    limit = max(memory_bytes // (WORKING_COPIES * pixel_bytes), COG_BLOCK**2)
    side = COG_BLOCK
    while side < largest and (2 * side) ** 2 <= limit and side < max(width, height):
        side *= 2
    across, down = side, side
    is_striped = source_block is not None and source_block[1] >= width
    while is_striped and across < width and min(across * 2, width) * COG_BLOCK <= limit:
        across *= 2
        while min(across, width) * down > limit and down > COG_BLOCK:
            down //= 2
    return Pyramid(width=width, height=height, across=across, down=down)
