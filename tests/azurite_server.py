"""Azurite, Microsoft's own emulator of Azure Blob Storage, where it is installed (`npm install -g azurite`)."""

import base64
import hmac
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import sha256

PROGRAM = shutil.which("azurite-blob")
ACCOUNT = "devstoreaccount1"
# The key of every Azurite: it is public.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-08-06"


@contextmanager
def run_azurite(container: str) -> Iterator[str]:
    """Its address with the account; it has this container."""
    assert PROGRAM is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/{ACCOUNT}"
    command = [PROGRAM, "--blobPort", str(port), "--silent", "--inMemoryPersistence", "--disableTelemetry"]
    process = subprocess.Popen(
        [*command, "--skipApiVersionCheck"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _make_container(address, container)
        yield address
    finally:
        process.terminate()
        process.wait()


def _make_container(address: str, name: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        moment = formatdate(usegmt=True)
        text = (
            f"PUT{chr(10) * 12}x-ms-date:{moment}\nx-ms-version:{VERSION}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        )
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), sha256)).decode()
        headers = {
            "x-ms-date": moment,
            "x-ms-version": VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            "Content-Length": "0",
        }
        request = urllib.request.Request(f"{address}/{name}?restype=container", method="PUT", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert time.monotonic() < deadline, "Azurite does not answer"
            time.sleep(0.1)
