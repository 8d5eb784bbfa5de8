"""A server of an external service for tests, on a port that it chooses itself."""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

START_SECONDS = 100.0


@contextmanager
def run_emulator(command: Sequence[str], address: str) -> Iterator[str]:
    """The URL that it prints when its port is open, matched by the group of this pattern."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield _find_address(process, output, re.compile(address.encode()))
        finally:
            process.terminate()
            process.wait()


def _find_address(process: subprocess.Popen[bytes], output: IO[bytes], pattern: re.Pattern[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while True:
        has_ended = process.poll() is not None
        text = os.pread(output.fileno(), 65536, 0)  # The file position belongs to the server.
        if match := pattern.search(text):
            return match[1].decode()
        assert not has_ended and time.monotonic() < deadline, f"it did not start: {text.decode(errors='replace')}"
        time.sleep(0.02)
