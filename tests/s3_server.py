"""Local S3 servers: moto, and s3rver, which `make s3rver` installs if npm is available."""

import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emulator import run_emulator

INSTALLED = Path(sys.prefix) / "s3rver" / "node_modules" / ".bin"
S3RVER = shutil.which("s3rver", path=os.pathsep.join([str(INSTALLED), os.environ["PATH"]]))
# The id and the secret of its only key: unlike moto, it refuses any other id.
S3RVER_KEY = "S3RVER"


@contextmanager
def run_s3(bucket: str) -> Iterator[str]:
    """Return its URL; it has this bucket."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with run_emulator(command, r"Running on (http://[\w.:]+)") as address:
        with urllib.request.urlopen(urllib.request.Request(f"{address}/{bucket}", method="PUT"), timeout=60):
            pass
        yield address


@contextmanager
def run_s3rver(bucket: str, folder: Path) -> Iterator[str]:
    """Return its URL; it has this bucket, in this folder."""
    assert S3RVER is not None
    command = [S3RVER, "-d", str(folder), "-a", "127.0.0.1", "-p", "0", "--configure-bucket", bucket]
    with run_emulator(command, r"listening on ([\w.:]+)") as address:
        yield f"http://{address}"
