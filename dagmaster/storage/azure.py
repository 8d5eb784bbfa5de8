"""Access to Azure Blob Storage with the identity of this process: signatures (SAS) of one hour, no stored secrets."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, TypedDict

from dagmaster.errors import Misconfigured
from dagmaster.storage.errors import StorageUnavailable

SAS_LIFETIME: Final = timedelta(hours=1)
KEY_LIFETIME: Final = timedelta(days=1)
KEY_RENEWED_BEFORE_END: Final = timedelta(hours=6)
# Clocks differ: for the server, a key that starts now may not be valid yet.
CLOCK_SKEW: Final = timedelta(minutes=5)
PERMISSIONS: Final = "racwdl"
SCOPE: Final = "https://storage.azure.com/.default"
PATIENCE: Final = {"connection_timeout": 10, "read_timeout": 30}
# obstore reads these itself; any of them makes an identity unnecessary.
CREDENTIALS: Final = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_USE_EMULATOR",
    "AZURE_SKIP_SIGNATURE",
)

logger = logging.getLogger(__name__)


class SasCredential(TypedDict):
    """In obstore's format. obstore requests a new one a few minutes before it expires."""

    sas_token: str
    expires_at: datetime


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class DelegationKeys:
    """The user delegation key of an account, shared by all its signatures until it is renewed.

    `fetch` takes the start and the end of the key's validity.
    """

    fetch: Callable[[datetime, datetime], Any] = field(repr=False)
    _key: Any = field(default=None, init=False, repr=False)
    _end: datetime = field(default=datetime.min.replace(tzinfo=UTC), init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def get(self, now: datetime) -> Any:
        """A key that outlives a signature made now."""
        with self._lock:
            if now + KEY_RENEWED_BEFORE_END >= self._end:
                self._renew(now)
            return self._key

    def _renew(self, now: datetime) -> None:
        end = now + KEY_LIFETIME
        try:
            self._key = self.fetch(now - CLOCK_SKEW, end)
        except _library().error as error:
            if now + SAS_LIFETIME >= self._end:
                raise
            logger.warning(
                "the user delegation key of Azure Blob Storage cannot be renewed (%s); using the old one until %s",
                type(error).__name__,
                self._end,
            )
        else:
            self._end = end


@dataclass(frozen=True)
class DelegatedAccess:
    """Signs access to a container. obstore calls it for each signature that it needs."""

    account: str
    container: str
    keys: DelegationKeys

    def __call__(self) -> SasCredential:
        now = utc_now()
        end = now + SAS_LIFETIME
        try:
            key = self.keys.get(now)
        except _library().error as error:
            raise StorageUnavailable(
                f"the identity of this process has no access to the storage account {self.account}; it needs the role "
                f"Storage Blob Data Contributor there: {str(error).partition(chr(10))[0]}"
            ) from error
        token = _library().blob.generate_container_sas(
            account_name=self.account,
            container_name=self.container,
            user_delegation_key=key,
            permission=PERMISSIONS,
            expiry=end,
            protocol="https",
        )
        return {"sas_token": token, "expires_at": end}


def uses_identity(environ: Mapping[str, str]) -> bool:
    return not any(environ.get(name) for name in CREDENTIALS)


def open_access(account: str, container: str) -> DelegatedAccess:
    endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT")
    return DelegatedAccess(account, container, _keys(endpoint or f"https://{account}.blob.core.windows.net"))


@cache
def _keys(endpoint: str) -> DelegationKeys:
    identity, blob, _ = _library()
    credential = identity.DefaultAzureCredential()
    retries = blob.LinearRetry(backoff=1)
    service = blob.BlobServiceClient(endpoint, credential=credential, retry_policy=retries, **PATIENCE)

    def fetch(start: datetime, end: datetime) -> Any:
        # Fails at once without an identity; the service would request the token repeatedly.
        credential.get_token(SCOPE)
        return service.get_user_delegation_key(start, end)

    return DelegationKeys(fetch)


class _Library(NamedTuple):
    identity: Any
    blob: Any
    error: type[Exception]


@cache
def _library() -> _Library:
    try:
        error = import_module("azure.core.exceptions").AzureError
        return _Library(import_module("azure.identity"), import_module("azure.storage.blob"), error)
    except ImportError as missing:
        raise Misconfigured(
            "a storage zone in Azure Blob Storage needs AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or, with "
            "`pip install 'dagmaster[azure]'`, a managed identity"
        ) from missing
