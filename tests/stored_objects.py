"""Requirements on every object store with zones."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import from_url

from dagmaster.settings import load_settings
from dagmaster.storage import FileMissing, Listed, ReferenceRefused, Storage, StorageUnavailable, open_storage
from dagmaster.storage.source import CHUNK_BYTES

CONTENT = os.urandom(3 * CHUNK_BYTES + 17)


def storage_in(folder: Path, **settings: object) -> Storage:
    return open_storage(load_settings(data_dir=folder, **settings))


class Interruption(Exception):
    pass


async def interrupt(storage: Storage, source: str, target: str) -> None:
    calls = 0

    def stop(done: int, total: int | None) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Interruption

    with pytest.raises(Interruption):
        await storage.copy(source, target, stop)


async def check_objects(container: str, folder: Path, **credentials: Any) -> None:
    """Read, write, resume, list and remove, and check the store itself with these credentials."""
    obstore.put(from_url(f"{container}/incoming", **credentials), "x/a.tif", CONTENT)
    storage = storage_in(folder, storage_bronze=f"{container}/incoming", storage_silver=f"{container}/products")
    assert await storage.size("bronze/x/a.tif") == len(CONTENT)
    await interrupt(storage, "bronze/x/a.tif", "mount/a.tif")
    down = await storage.copy("bronze/x/a.tif", "mount/a.tif")
    assert 0 < down.resumed_at < len(CONTENT)
    up = await storage.copy("mount/a.tif", "silver/a.tif")
    assert down.sha256 == up.sha256 == sha256(CONTENT).hexdigest()
    assert bytes(obstore.get(from_url(f"{container}/products", **credentials), "a.tif").bytes()) == CONTENT
    with pytest.raises(StorageUnavailable):  # Shortened while it is read: the object must stay as it is.
        await storage.copy("mount/a.tif", "silver/a.tif", lambda *_: os.truncate(storage.local_path("mount/a.tif"), 99))
    assert await storage.size("silver/a.tif") == len(CONTENT)
    with pytest.raises(FileMissing, match=r"bronze/x/gone.tif"):
        await storage.size("bronze/x/gone.tif")
    with pytest.raises(ReferenceRefused, match="mount"):
        storage.local_path("silver/a.tif")
    expected = [Listed("bronze/x/a.tif", len(CONTENT))]
    assert await storage.list("bronze", limit=9) == await storage.list("bronze/x", limit=9) == expected
    assert await storage.list("bronze/x/a", limit=9) == []
    written = await storage.write("silver/a.tif", b"{}")
    assert (written.size_bytes, written.sha256) == (await storage.size("silver/a.tif"), sha256(b"{}").hexdigest())
    assert await storage.remove("silver/a.tif")
    assert not await storage.remove("silver/a.tif")
