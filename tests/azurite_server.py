"""Azurite, Microsoft's own emulator of Azure Blob Storage. `make azurite` installs it where there is npm.

It cannot check signatures by versions of azure-storage-blob after 12.28, with which constraints.txt stays for its sake.
"""

import base64
import hmac
import ipaddress
import os
import shutil
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from emulator import run_emulator

INSTALLED = Path(sys.prefix) / "azurite" / "node_modules" / ".bin"
PROGRAM = shutil.which("azurite-blob", path=os.pathsep.join([str(INSTALLED), os.environ["PATH"]]))
ACCOUNT = "devstoreaccount1"
# The public key of every Azurite.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-08-06"


@dataclass(frozen=True)
class Azurite:
    """`address` includes the account; `certificate` is the file that clients must trust."""

    address: str
    certificate: Path

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its clients, without credentials."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ENDPOINT": self.address,
            "SSL_CERT_FILE": str(self.certificate),
            "REQUESTS_CA_BUNDLE": str(self.certificate),
        }


@contextmanager
def run_azurite(container: str, folder: Path) -> Iterator[Azurite]:
    """With this container. It uses HTTPS, without which tokens of an identity are refused."""
    assert PROGRAM is not None
    certificate, key = _make_certificate(folder)
    options = ("--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--oauth", "basic")
    command = [PROGRAM, "--blobPort", "0", *options, "--cert", str(certificate), "--key", str(key)]
    with run_emulator(command, r"listens on (https://[\w.:]+)") as url:
        server = Azurite(f"{url}/{ACCOUNT}", certificate)
        _make_container(server, container)
        yield server


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    """The files of a self-signed certificate for this machine, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Azurite")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "azurite.pem", folder / "azurite.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def _make_container(server: Azurite, name: str) -> None:
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
    request = urllib.request.Request(f"{server.address}/{name}?restype=container", method="PUT", headers=headers)
    trusted = ssl.create_default_context(cafile=server.certificate)
    with urllib.request.urlopen(request, timeout=60, context=trusted):
        pass
