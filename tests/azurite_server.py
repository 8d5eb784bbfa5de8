"""Azurite, Microsoft's own emulator of Azure Blob Storage. `make azurite` installs it where there is npm."""

import base64
import hmac
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path

from emulator import run_emulator

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
    with run_emulator([PROGRAM, "--blobPort", "0", *options], r"listens on (http://[\w.:]+)") as url:
        address = f"{url}/{ACCOUNT}"
        _make_container(address, container)
        yield address


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
