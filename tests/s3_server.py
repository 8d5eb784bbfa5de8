"""An S3 server of this machine."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def run_s3(bucket: str) -> Iterator[str]:
    """Its address; it has this bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(f"{address}/{bucket}")
        yield address
    finally:
        process.terminate()
        process.wait()


def _make_bucket(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5):
                return
        except OSError:
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.1)
