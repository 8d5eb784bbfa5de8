"""The directories of TIFF files: parse those that GDAL writes, and lay out those of a cloud-optimised file."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

SUBFILE_TYPE: Final = 254
WIDTH, HEIGHT = 256, 257
TILE_OFFSETS, TILE_SIZES = 324, 325
REDUCED, MASK = 1, 4
# The georeference and the meaning of the pixels are stored once, in the first directory.
ONLY_OF_THE_WHOLE: Final = frozenset({33550, 33922, 34264, 34735, 34736, 34737, 42112, 50844})

ITEM_BYTES: Final = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 18: 8}
SHORT, LONG, LONG8 = 3, 4, 16
LARGEST_CLASSIC: Final = 2**32 - 1
LEADER: Final = struct.Struct("<I")

STRUCTURE: Final = (
    "LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n"
    "BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
)
MASKED_STRUCTURE: Final = STRUCTURE + "MASK_INTERLEAVED_WITH_IMAGERY=YES\n"


@dataclass(frozen=True, slots=True)
class Field:
    kind: int
    count: int
    content: bytes


Directory = Mapping[int, Field]


def read_directories(file: Any) -> list[Directory]:
    """The directories of a little-endian classic TIFF in memory."""
    directories: list[Directory] = []
    (position,) = struct.unpack_from("<I", file, 4)
    while position:
        (count,) = struct.unpack_from("<H", file, position)
        entries = [_read_field(file, position + 2 + 12 * number) for number in range(count)]
        directories.append(dict(entries))
        (position,) = struct.unpack_from("<I", file, position + 2 + 12 * count)
    return directories


def _read_field(file: Any, position: int) -> tuple[int, Field]:
    tag, kind, count, place = struct.unpack_from("<HHII", file, position)
    size = ITEM_BYTES[kind] * count
    start = place if size > 4 else position + 8
    return tag, Field(kind, count, bytes(file[start : start + size]))


def blocks_of(file: Any, directory: Directory) -> list[Any]:
    """The compressed blocks, as views of the file."""
    offsets, sizes = _integers(directory[TILE_OFFSETS]), _integers(directory[TILE_SIZES])
    return [file[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]


def _integers(field: Field) -> list[int]:
    kinds = {SHORT: "<u2", LONG: "<u4", LONG8: "<u8"}
    return [int(number) for number in np.frombuffer(field.content, kinds[field.kind])]


@dataclass(frozen=True, slots=True)
class Level:
    """An image of the pyramid, the largest first. `sizes` are the sizes of its blocks, row by row."""

    width: int
    height: int
    sizes: Any
    mask_sizes: Any | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything before the blocks, which follow from the smallest level to the largest."""

    header: bytes
    size_bytes: int


def lay_out(
    template: Sequence[Directory], levels: Sequence[Level], *, largest_classic: int = LARGEST_CLASSIC
) -> Layout:
    """`template` is the directory of the whole image and, if it has one, that of its mask."""
    has_mask = levels[0].mask_sizes is not None
    blocks = sum(int(_stored(level).sum()) for level in levels)
    directories = [
        _Draft(template[is_mask], level, is_mask=bool(is_mask), is_reduced=number > 0)
        for number, level in enumerate(levels)
        for is_mask in range(1 + has_mask)
    ]
    ghost = _ghost(has_mask)
    starts = {
        form: form.prefix + len(ghost) + sum(draft.size(form) for draft in directories) for form in (_CLASSIC, _BIG)
    }
    form = _CLASSIC if starts[_CLASSIC] + blocks <= largest_classic else _BIG
    offsets = _offsets(levels, starts[form], 1 + has_mask)
    header = form.opening(form.prefix + len(ghost)) + ghost
    for number, draft in enumerate(directories):
        is_last = number == len(directories) - 1
        header += draft.write(form, len(header), offsets[number], is_last=is_last)
    return Layout(header, starts[form] + blocks)


def _ghost(has_mask: bool) -> bytes:
    """The marker by which GDAL recognises a cloud-optimised file; directories start at even offsets."""
    structure = MASKED_STRUCTURE if has_mask else STRUCTURE
    ghost = f"GDAL_STRUCTURAL_METADATA_SIZE={len(structure):06d} bytes\n{structure}".encode()
    return ghost + b"\0" * (len(ghost) % 2)


def _stored(level: Level) -> Any:
    """The stored size of each block, including its size and four repeated bytes, and of the mask block."""
    sizes = np.asarray(level.sizes, "uint64") + 2 * LEADER.size
    if level.mask_sizes is not None:
        sizes = np.stack([sizes, np.asarray(level.mask_sizes, "uint64") + 2 * LEADER.size], axis=1).reshape(-1)
    return sizes


def _offsets(levels: Sequence[Level], start: int, images: int) -> list[Any]:
    """The offsets of the blocks of each directory, in the order of the directories."""
    offsets: list[Any] = []
    for level in reversed(levels):
        ends = start + np.cumsum(_stored(level))
        begins = np.concatenate([[start], ends[:-1]]).astype("uint64") + LEADER.size
        offsets[:0] = [begins[number::images] for number in range(images)]
        start = int(ends[-1])
    return offsets


@dataclass(frozen=True, slots=True)
class _Form:
    """Classic TIFF, or BigTIFF for files of more than 4 GB."""

    prefix: int
    count: struct.Struct
    entry: struct.Struct
    offset: struct.Struct
    offset_kind: int

    def opening(self, first: int) -> bytes:
        if self.offset_kind == LONG:
            return struct.pack("<2sHI", b"II", 42, first)
        return struct.pack("<2sHHHQ", b"II", 43, 8, 0, first)


_CLASSIC: Final = _Form(8, struct.Struct("<H"), struct.Struct("<HHI"), struct.Struct("<I"), LONG)
_BIG: Final = _Form(16, struct.Struct("<Q"), struct.Struct("<HHQ"), struct.Struct("<Q"), LONG8)


class _Draft:
    """A directory whose blocks have sizes but no offsets yet."""

    def __init__(self, template: Directory, level: Level, *, is_mask: bool, is_reduced: bool) -> None:
        self.sizes = np.asarray(level.mask_sizes if is_mask else level.sizes)
        kind = REDUCED * is_reduced + MASK * is_mask
        own = {
            WIDTH: Field(LONG, 1, struct.pack("<I", level.width)),
            HEIGHT: Field(LONG, 1, struct.pack("<I", level.height)),
            TILE_SIZES: Field(LONG, self.sizes.size, self.sizes.astype("<u4").tobytes()),
            **({SUBFILE_TYPE: Field(LONG, 1, struct.pack("<I", kind))} if kind else {}),
        }
        lifted = {tag: field for tag, field in template.items() if not (is_reduced and tag in ONLY_OF_THE_WHOLE)}
        self.fields = {**lifted, **own}

    def size(self, form: _Form) -> int:
        return len(self.write(form, 0, np.zeros(self.sizes.size), is_last=True))

    def write(self, form: _Form, position: int, offsets: Any, *, is_last: bool) -> bytes:
        numbers = np.asarray(offsets).astype("<u4" if form.offset_kind == LONG else "<u8")
        own = {TILE_OFFSETS: Field(form.offset_kind, numbers.size, numbers.tobytes())}
        fields = sorted({**self.fields, **own}.items())
        entry_bytes = form.entry.size + form.offset.size
        place = position + form.count.size + entry_bytes * len(fields) + form.offset.size
        entries, outside = bytearray(), bytearray()
        for tag, field in fields:
            content = field.content
            if len(content) > form.offset.size:
                content = form.offset.pack(place + len(outside))
                outside += field.content + b"\0" * (-len(field.content) % 8)
            entries += form.entry.pack(tag, field.kind, field.count) + content.ljust(form.offset.size, b"\0")
        following = 0 if is_last else place + len(outside)
        return form.count.pack(len(fields)) + bytes(entries) + form.offset.pack(following) + bytes(outside)
