"""Zones in Azure Blob Storage, with the account key and with the process identity."""

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import azurite_server
import numpy as np
import pytest
from azure.core.exceptions import ServiceRequestError
from azure.storage.blob import UserDelegationKey
from azure_identity import HEADER, IdentityServer, run_identity
from azurite_server import Azurite, run_azurite
from rasters import DEM
from stored_objects import check_objects, storage_in

from dagmaster.errors import Misconfigured
from dagmaster.handlers import HandlerContext, call, raster, registry
from dagmaster.ids import JobId
from dagmaster.storage import RemoteObject, Storage, StorageUnavailable, azure, objects
from dagmaster.storage.azure import DelegatedAccess, DelegationKeys
from dagmaster.tiles.reader import CogReader
from dagmaster.tiles.sources import open_raster

assert raster.MAX_ITEMS  # imported for the handlers that it registers

TILE = (105, 193, 9)  # x, y and zoom, in the middle of the raster.
NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
needs_azurite = pytest.mark.skipif(
    azurite_server.PROGRAM is None, reason="needs Azurite, which needs npm: make azurite"
)


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with run_azurite("rasters", tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Without credentials, and with stores opened for this test alone."""
    for name in azure.CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    for cached in (objects._open, azure._keys):
        cached.cache_clear()
    yield monkeypatch
    for cached in (objects._open, azure._keys):
        cached.cache_clear()


@pytest.fixture
def identity(azurite: Azurite, environment: pytest.MonkeyPatch) -> Iterator[IdentityServer]:
    with run_identity() as server:
        for name, value in {**azurite.variables, **server.variables}.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """With a prefix of the shared container for this test alone."""
    (tmp_path / "storage" / "mount").mkdir(parents=True)
    (tmp_path / "storage" / "mount" / "a.txt").write_bytes(b"content")
    return storage_in(tmp_path, storage_bronze=f"az://rasters/{tmp_path.name}")


@needs_azurite
async def test_blobs_can_be_read_written_and_resumed_with_the_account_key(
    azurite: Azurite, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {**azurite.variables, "AZURE_STORAGE_ACCOUNT_KEY": azurite_server.KEY}.items():
        environment.setenv(name, value)
    await check_objects("az://rasters", tmp_path)


@needs_azurite
async def test_blobs_can_be_copied_read_listed_and_removed_with_the_process_identity(
    azurite: Azurite, identity: IdentityServer, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("", "azure", "urllib3"):  # An earlier test may have silenced libraries.
        caplog.set_level(logging.DEBUG, name)
    await storage.copy("mount/a.txt", "bronze/x/a.txt")
    assert b"".join([chunk async for chunk in storage.read("bronze/x/a.txt")]) == b"content"
    assert [file.reference for file in await storage.list("bronze", limit=9)] == ["bronze/x/a.txt"]
    assert await storage.remove("bronze/x/a.txt")
    assert "userdelegationkey" in caplog.text
    [token] = identity.tokens
    key = azure._keys(azurite.address).get(azure.utc_now()).value
    for secret in (token, key, HEADER, "sig="):
        assert secret not in caplog.text


@needs_azurite
async def test_an_expired_signature_is_refused_and_renewed(
    identity: IdentityServer, storage: Storage, environment: pytest.MonkeyPatch
) -> None:
    await storage.copy("mount/a.txt", "bronze/a.txt")
    objects._open.cache_clear()
    with environment.context() as past:
        past.setattr(azure, "utc_now", lambda: datetime.now(UTC) - timedelta(hours=1, seconds=1))
        with pytest.raises(StorageUnavailable, match=r"bronze/a.txt cannot be reached") as refused:
            await storage.size("bronze/a.txt")
        assert "403" in str(refused.value)
        assert not re.search(r"sig=(?!\*)", str(refused.value))
    assert await storage.size("bronze/a.txt") == len(b"content")
    assert len(identity.tokens) == 1


@needs_azurite
async def test_without_access_the_error_names_the_account_and_the_role(
    identity: IdentityServer, storage: Storage, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("IDENTITY_HEADER", "unknown")
    with pytest.raises(
        StorageUnavailable, match=f"account {azurite_server.ACCOUNT}.* role Storage Blob Data"
    ) as refused:
        await storage.size("bronze/a.txt")
    assert "DefaultAzureCredential failed" in str(refused.value)


async def run_handler(name: str, **params: Any) -> dict[str, Any]:
    ctx = HandlerContext(
        task_id="7_a_0", job_id=JobId(7), node_id="a", correlation_id="r-1", handler=name, params=params
    )
    result = await call(registry.get(name), ctx, executor=None)
    assert result.success, result.error_message
    return result.output


@needs_azurite
async def test_a_raster_in_azure_can_be_validated_optimised_and_drawn(
    identity: IdentityServer, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zones = {"bronze": "az://rasters/scenes", "silver": "az://rasters/cogs"}
    environment.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    for zone, url in zones.items():
        environment.setenv(f"DAGMASTER_STORAGE_{zone.upper()}", url)
    storage = storage_in(tmp_path)
    (tmp_path / "storage" / "mount").mkdir(parents=True)
    (tmp_path / "storage" / "mount" / "dem.tif").write_bytes(DEM.read_bytes())
    await storage.copy("mount/dem.tif", "bronze/dem.tif")

    copied = await run_handler("raster.blob_to_mount", source="bronze/dem.tif")
    report = await run_handler("raster.validate", path=copied["path"])
    cog = await run_handler("raster.create_cog", path=copied["path"], report=report)

    remote = storage.locate(cog["blob_path"])
    assert isinstance(remote, RemoteObject)
    await storage.copy(cog["blob_path"], "mount/cog.tif")
    with (
        CogReader(open_raster(remote, "remote")) as from_azure,
        CogReader(open_raster(storage.locate("mount/cog.tif"), "local")) as from_file,
    ):
        tile = from_azure.tile(*TILE)
        assert tile.mask.any()
        np.testing.assert_array_equal(tile.array, from_file.tile(*TILE).array)
        assert "sig" not in from_azure.dataset.name
    assert "sig=" not in f"{copied}{report}{cog}"


class Account:
    """Issues keys, and can be unreachable."""

    def __init__(self) -> None:
        self.periods: list[tuple[datetime, datetime]] = []
        self.is_down = False

    def fetch(self, start: datetime, end: datetime) -> UserDelegationKey:
        if self.is_down:
            raise ServiceRequestError("out of reach")
        self.periods.append((start, end))
        key = UserDelegationKey()
        key.signed_oid = key.signed_tid = "11111111-1111-1111-1111-111111111111"
        key.signed_start, key.signed_expiry = start.isoformat(), end.isoformat()
        key.signed_service, key.signed_version, key.value = "b", "2021-08-06", f"a2V5{len(self.periods):04}"
        return key


@pytest.fixture
def account() -> Account:
    return Account()


def test_a_signature_is_valid_for_one_hour_and_one_container(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(azure, "utc_now", lambda: NOON)
    access = DelegatedAccess("acme", "rasters", DelegationKeys(account.fetch))
    credential = access()
    signed = {name: value for name, [value] in parse_qs(credential["sas_token"]).items()}
    assert credential["expires_at"] == NOON + timedelta(hours=1)
    assert signed["se"] == "2026-11-17T13:00:00Z"
    assert (signed["sr"], signed["sp"], signed["spr"]) == ("c", "racwdl", "https")
    assert "a2V5" not in repr(access)


def test_a_key_signs_many_signatures_and_is_renewed_early(account: Account) -> None:
    keys = DelegationKeys(account.fetch)
    values = [keys.get(NOON + timedelta(hours=hours)).value for hours in (0, 1, 17, 18, 24, 35, 36)]
    assert values == ["a2V50001"] * 3 + ["a2V50002"] * 3 + ["a2V50003"]
    starts = [start for start, _ in account.periods]
    assert starts == [NOON + timedelta(hours=hours) - azure.CLOCK_SKEW for hours in (0, 18, 36)]
    assert all(end - start == azure.KEY_LIFETIME + azure.CLOCK_SKEW for start, end in account.periods)


def test_the_old_key_is_used_while_it_outlasts_a_signature(account: Account, caplog: pytest.LogCaptureFixture) -> None:
    keys = DelegationKeys(account.fetch)
    keys.get(NOON)
    account.is_down = True
    assert keys.get(NOON + timedelta(hours=22, minutes=59)).value == "a2V50001"
    assert "cannot be renewed (ServiceRequestError)" in caplog.text
    with pytest.raises(ServiceRequestError):
        keys.get(NOON + timedelta(hours=23))
    account.is_down = False
    assert keys.get(NOON + timedelta(hours=23)).value == "a2V50002"


def test_concurrent_threads_share_a_key(account: Account) -> None:
    keys = DelegationKeys(account.fetch)
    with ThreadPoolExecutor(8) as pool:
        assert {key.value for key in pool.map(keys.get, [NOON] * 64)} == {"a2V50001"}
    assert len(account.periods) == 1


def test_with_a_credential_in_the_environment_no_identity_is_used() -> None:
    for name in azure.CREDENTIALS:
        assert azure.uses_identity({name: ""})
        assert not azure.uses_identity({name: "value"})


async def test_without_the_azure_libraries_the_error_names_what_to_install(
    environment: pytest.MonkeyPatch, storage: Storage
) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    environment.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    environment.setattr(azure, "import_module", fail)
    azure._library.cache_clear()
    with pytest.raises(Misconfigured, match=r"AZURE_STORAGE_ACCOUNT_KEY.*pip install 'dagmaster\[azure\]'"):
        await storage.size("bronze/a.txt")
