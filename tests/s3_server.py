"""An S3 server of this machine."""

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from emulator import run_emulator


@contextmanager
def run_s3(bucket: str) -> Iterator[str]:
    """Its address; it has this bucket."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with run_emulator(command, r"Running on (http://[\w.:]+)") as address:
        with urllib.request.urlopen(urllib.request.Request(f"{address}/{bucket}", method="PUT"), timeout=60):
            pass
        yield address
