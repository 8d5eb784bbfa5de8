"""Azurite, Microsoft's own emulator of Azure Blob Storage. `make azurite` installs it where there is npm."""

import base64
import hmac
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path

INSTALLED = Path(sys.prefix) / "azurite" / "node_modules" / ".bin"
PROGRAM = shutil.which("azurite-blob", path=os.pathsep.join([str(INSTALLED), os.environ["PATH"]]))
ACCOUNT = "devstoreaccount1"
# The key of every Azurite: it is public.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-08-06"


@contextmanager
def run_azurite(container: str) -> Iterator[str]:
    """Its address with the account; it has this container."""
    assert PROGRAM is not None
    options = ("--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck")
    process = subprocess.Popen(
        [PROGRAM, "--blobPort", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        address = f"{_url(process)}/{ACCOUNT}"
        _make_container(address, container)
        yield address
    finally:
        process.terminate()
        process.communicate()


def _url(process: subprocess.Popen[str]) -> str:
    """As it is written when the port is open."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if match := re.search(r"listens on (http://\S+)", line):
            return match[1]
        lines.append(line)
    raise AssertionError(f"Azurite did not start: {''.join(lines)}")


def _make_container(address: str, name: str) -> None:
    moment = formatdate(usegmt=True)
    text = (
        f"PUT{chr(10) * 12}x-ms-date:{moment}\nx-ms-version:{VERSION}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    )
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), sha256)).decode()
    headers = {
        "x-ms-date": moment,
        "x-ms-version": VERSION,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        "Content-Length": "0",
    }
    request = urllib.request.Request(f"{address}/{name}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=60):
        pass
