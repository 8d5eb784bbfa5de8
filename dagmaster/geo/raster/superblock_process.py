"""A process that makes superblocks. Run as a module: the first input line is the job, the others are superblocks."""

import os
import sys
from typing import IO, Literal

from pydantic import BaseModel

from dagmaster.geo.errors import UnreadableRaster
from dagmaster.geo.raster.pyramid import Superblock
from dagmaster.geo.raster.superblock import SuperblockMaker, WriteJob


class Answer(BaseModel, frozen=True):
    superblock: Superblock
    outcome: Literal["made", "unreadable"] = "made"
    message: str = ""


def main() -> None:
    """Ends with its input, so that it does not outlive its parent."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Output of libraries must not mix with the answers.
    job = WriteJob.model_validate_json(sys.stdin.readline())
    with SuperblockMaker(job) as maker:
        for line in sys.stdin:
            _answer(maker, Superblock.model_validate_json(line), answers)


def _answer(maker: SuperblockMaker, superblock: Superblock, answers: IO[str]) -> None:
    try:
        maker.make(superblock)
    except UnreadableRaster as error:
        answer = Answer(superblock=superblock, outcome="unreadable", message=str(error))
    else:
        answer = Answer(superblock=superblock)
    answers.write(answer.model_dump_json() + "\n")


if __name__ == "__main__":
    main()
