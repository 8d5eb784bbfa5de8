"""Digests that identify equal rows and equal plans."""

from hashlib import sha256
from typing import Any

import orjson
import pyarrow as pa

from dagmaster.data.plans import write_plan


class _Hashing:
    """A file that keeps only the digest of its content."""

    closed = False

    def __init__(self) -> None:
        self.hash = sha256()

    def write(self, data: Any) -> int:
        piece = memoryview(data).cast("B")
        self.hash.update(piece)
        return len(piece)

    def flush(self) -> None:
        pass


def digest_of(rows: pa.Table) -> str:
    """Independent of the chunks of the rows and of the table's metadata."""
    plain = rows.replace_schema_metadata(None).combine_chunks()
    file = _Hashing()
    with pa.ipc.new_stream(file, plain.schema) as writer:
        writer.write_table(plain)
    return file.hash.hexdigest()


def digest_of_plan(plan: Any) -> str:
    """Not of the rows: sums of floats may differ in the last digit when computed again."""
    return sha256(orjson.dumps(write_plan(plan), option=orjson.OPT_SORT_KEYS)).hexdigest()
