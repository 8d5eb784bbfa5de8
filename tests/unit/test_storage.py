"""References lead only to files of the configured storage, and copies are complete or absent."""

import asyncio
import fcntl
import functools
import http.server
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from s3_server import S3RVER, S3RVER_KEY, run_s3, run_s3rver
from stored_objects import CONTENT, check_objects, interrupt, storage_in

from dagmaster.errors import Misconfigured
from dagmaster.settings import load_settings
from dagmaster.storage import (
    FileMissing,
    Listed,
    LocalFile,
    ReferenceRefused,
    RemoteObject,
    Storage,
    StorageUnavailable,
    WebFile,
    Zones,
    web,
)
from dagmaster.storage.files import walk
from dagmaster.storage.source import CHUNK_BYTES

AWS = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "very-secret",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    for zone in ("bronze", "silver", "mount"):
        (tmp_path / "storage" / zone).mkdir(parents=True)
    (tmp_path / "storage" / "bronze" / "a.tif").write_bytes(CONTENT)
    (tmp_path / "outside.tif").write_bytes(b"secret")
    return storage_in(tmp_path)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with run_s3("rasters") as address:
        yield address


# References.


def test_a_file_is_referenced_by_zone_or_by_path(storage: Storage, tmp_path: Path) -> None:
    path = (tmp_path / "storage" / "bronze" / "a.tif").resolve()
    for reference in ("bronze/a.tif", str(path)):
        assert storage.locate(reference) == LocalFile(path, "bronze/a.tif")


def test_a_container_belongs_to_its_zone(tmp_path: Path) -> None:
    storage = storage_in(tmp_path, storage_bronze=str(tmp_path / "incoming"), storage_silver="s3://products/cogs")
    assert storage.locate("incoming/x/a.tif").reference == "bronze/x/a.tif"
    expected = RemoteObject("s3://products/cogs", "x/a.tif", "silver/x/a.tif")
    assert storage.locate("products/x/a.tif") == storage.locate("s3://products/cogs/x/a.tif") == expected
    azure = storage_in(tmp_path, storage_bronze="https://acme.blob.core.windows.net/incoming")
    assert azure.locate("https://acme.blob.core.windows.net/incoming/a.tif?sig=abc") == RemoteObject(
        "https://acme.blob.core.windows.net/incoming", "a.tif", "bronze/a.tif"
    )


def test_an_encoded_azure_url_names_the_blob(tmp_path: Path) -> None:
    storage = storage_in(tmp_path, storage_bronze="https://acme.blob.core.windows.net/incoming")
    assert storage.locate("https://acme.blob.core.windows.net/incoming/r%C3%A9gion%201.tif").reference == (
        "bronze/région 1.tif"
    )
    with pytest.raises(ReferenceRefused):
        storage.locate("https://acme.blob.core.windows.net/incoming/%2e%2e/other/a.tif")


@pytest.mark.parametrize(
    "reference",
    [
        "bronze/../silver/a.tif",
        "bronze/x/../../../outside.tif",
        "bronze/%2e%2e/%2e%2e/outside.tif",
        "bronze/%252e%252e/outside.tif",
        "bronze/x%2f..%2fa.tif",
        "bronze//a.tif",
        "bronze/./a.tif",
        "bronze\\..\\a.tif",
        "bronze/a\0.tif",
        "bronze",
        "bronze/",
        "",
        "nowhere/a.tif",
        "a.tif",
        "/etc/passwd",
        "/proc/self/environ",
        "/vsizip/bronze/a.zip/a.tif",
        "/vsicurl/bronze/a.tif",
        "/vsis3/bucket/a.tif",
        "s3://other/a.tif",
        "file:///etc/passwd",
        "http://example.com/a.tif",
        "https://example.com/a.tif",
        "https://user:password@example.com/a.tif",
        "/vsicurl/https://169.254.169.254/latest/meta-data",
        "https://[::1",
        "bronze/" + "x" * 3000,
    ],
)
def test_a_reference_outside_the_zones_is_refused(storage: Storage, reference: str) -> None:
    with pytest.raises(ReferenceRefused):
        storage.locate(reference)


def test_a_symbolic_link_cannot_leave_its_zone(storage: Storage, tmp_path: Path) -> None:
    bronze = tmp_path / "storage" / "bronze"
    (bronze / "link.tif").symlink_to(tmp_path / "outside.tif")
    (bronze / "folder").symlink_to(tmp_path)
    (bronze / "same.tif").symlink_to(bronze / "a.tif")
    for reference in ("bronze/link.tif", "bronze/folder/outside.tif", str(bronze / "link.tif")):
        with pytest.raises(ReferenceRefused):
            storage.locate(reference)
    assert storage.local_path("bronze/same.tif").name == "a.tif"


def test_folders_outside_the_zones_can_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    storage = storage_in(tmp_path, storage_folders=[str(tmp_path / "archive")])
    assert isinstance(storage.locate(f"{tmp_path}/archive/a.tif"), LocalFile)
    with pytest.raises(ReferenceRefused, match="DAGMASTER_STORAGE_FOLDERS"):
        storage.locate(f"{tmp_path}/archive2/a.tif")


def test_web_servers_can_be_allowed_and_queries_are_redacted(tmp_path: Path) -> None:
    storage = storage_in(tmp_path, storage_allowed_hosts=["data.example.com"])
    for reference in (
        "https://data.example.com/a.tif?sig=hidden",
        "/vsicurl/https://data.example.com/a.tif?sig=hidden",
    ):
        location = storage.locate(reference)
        assert isinstance(location, WebFile)
        assert (location.url, location.reference) == (
            "https://data.example.com/a.tif?sig=hidden",
            "https://data.example.com/a.tif",
        )
        assert "hidden" not in repr(location)
    for reference in (
        "https://data.example.com.evil.org/a.tif?sig=hidden",
        "https://evil.org/data.example.com?sig=hidden",
    ):
        with pytest.raises(ReferenceRefused) as refused:
            storage.locate(reference)
        assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("place", ["ftp://x/y", "https://example.com/x", "s3://bucket/x?sig=1"])
def test_an_invalid_zone_is_named_at_start(tmp_path: Path, place: str) -> None:
    with pytest.raises(Misconfigured, match="DAGMASTER_STORAGE_SILVER"):
        storage_in(tmp_path, storage_silver=place)


# Copies.


async def test_a_copy_has_all_bytes_and_the_checksum(storage: Storage, tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    copied = await storage.copy("bronze/a.tif", "silver/x/b.tif", lambda done, total: steps.append((done, total)))
    assert (tmp_path / "storage/silver/x/b.tif").read_bytes() == CONTENT
    assert (copied.reference, copied.size_bytes, copied.resumed_at) == ("silver/x/b.tif", len(CONTENT), 0)
    assert copied.sha256 == sha256(CONTENT).hexdigest()
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert sorted(path.name for path in (tmp_path / "storage/silver/x").iterdir()) == ["b.tif"]


async def test_an_interrupted_copy_resumes_and_is_invisible_until_complete(storage: Storage, tmp_path: Path) -> None:
    await interrupt(storage, "bronze/a.tif", "mount/a.tif")
    assert not (tmp_path / "storage/mount/a.tif").exists()
    copied = await storage.copy("bronze/a.tif", "mount/a.tif")
    assert copied.resumed_at == CHUNK_BYTES
    assert copied.sha256 == sha256(CONTENT).hexdigest()
    assert (tmp_path / "storage/mount/a.tif").read_bytes() == CONTENT


async def test_a_copy_does_not_resume_with_changed_content(storage: Storage, tmp_path: Path) -> None:
    await interrupt(storage, "bronze/a.tif", "mount/a.tif")
    (tmp_path / "storage/bronze/a.tif").write_bytes(CONTENT[::-1])
    copied = await storage.copy("bronze/a.tif", "mount/a.tif")
    assert (copied.resumed_at, copied.sha256) == (0, sha256(CONTENT[::-1]).hexdigest())


async def test_two_concurrent_copies_to_one_place_do_not_mix(storage: Storage, tmp_path: Path) -> None:
    await interrupt(storage, "bronze/a.tif", "mount/a.tif")
    [part] = (tmp_path / "storage/mount").iterdir()
    with part.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        copied = await storage.copy("bronze/a.tif", "mount/a.tif")
    assert (copied.resumed_at, copied.sha256) == (0, sha256(CONTENT).hexdigest())
    results = await asyncio.gather(*(storage.copy("bronze/a.tif", "mount/a.tif") for _ in range(3)))
    assert {result.sha256 for result in results} == {sha256(CONTENT).hexdigest()}
    assert (tmp_path / "storage/mount/a.tif").read_bytes() == CONTENT


async def test_written_bytes_replace_the_file(storage: Storage, tmp_path: Path) -> None:
    for content in (CONTENT, b"", b"{}"):
        written = await storage.write("silver/x/index.json", content)
        assert (written.reference, written.sha256) == ("silver/x/index.json", sha256(content).hexdigest())
        [file] = (tmp_path / "storage/silver/x").iterdir()
        assert file.read_bytes() == content


async def test_a_missing_file_is_named_by_its_reference(storage: Storage, tmp_path: Path) -> None:
    for attempt in (storage.size("bronze/gone.tif"), storage.copy("bronze/gone.tif", "mount/a.tif")):
        with pytest.raises(FileMissing, match=r"^there is no file bronze/gone.tif$"):
            await attempt


async def test_a_folder_lists_files_without_links_and_unfinished_copies(storage: Storage, tmp_path: Path) -> None:
    bronze = tmp_path / "storage" / "bronze"
    (bronze / "x" / "y").mkdir(parents=True)
    (bronze / "x" / "y" / "b.tif").write_bytes(b"12")
    (bronze / "x" / ".b.tif.part").write_bytes(b"1")
    (bronze / "x" / "link.tif").symlink_to(tmp_path / "outside.tif")
    assert await storage.list("bronze", limit=9) == [
        Listed("bronze/a.tif", len(CONTENT)),
        Listed("bronze/x/y/b.tif", 2),
    ]
    assert await storage.list("bronze/x/", limit=9) == [Listed("bronze/x/y/b.tif", 2)]
    assert len(await storage.list("bronze", limit=1)) == 1
    location = storage.locate("bronze/x")
    assert isinstance(location, LocalFile)
    (bronze / "x" / "z").mkdir()
    files = walk(location)
    next(files)
    (bronze / "x" / "z" / "c.tif").touch()
    assert [file.reference for file in files] == ["bronze/x/z/c.tif"], "folders are read one by one, up to the limit"
    assert await storage.list("bronze/nothing", limit=9) == []
    for outside in ("nowhere", "/etc", "bronze/../silver"):
        with pytest.raises(ReferenceRefused):
            await storage.list(outside, limit=9)


async def test_a_file_can_be_removed_once_and_none_outside(storage: Storage, tmp_path: Path) -> None:
    assert await storage.remove("bronze/a.tif")
    assert not await storage.remove("bronze/a.tif")
    with pytest.raises(ReferenceRefused):
        await storage.remove(str(tmp_path / "outside.tif"))


async def test_s3_objects_can_be_read_written_and_resumed(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**AWS, "AWS_ENDPOINT_URL": s3}.items():
        monkeypatch.setenv(name, value)
    await check_objects("s3://rasters", tmp_path)


@pytest.mark.skipif(S3RVER is None, reason="needs s3rver, which needs npm: make s3rver")
async def test_objects_of_another_s3_server_can_be_read_written_and_resumed_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_s3rver("scenes", tmp_path / "s3rver") as address:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": address}.items():
            monkeypatch.setenv(name, value)
        storage = storage_in(tmp_path, storage_external="s3://scenes/external")
        with pytest.raises(StorageUnavailable, match=r"external/a.txt cannot be reached.* 403 "):
            await storage.size("external/a.txt")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3RVER_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3RVER_KEY)
        # Stores are opened once per zone, and other tests use another bucket.
        await check_objects("s3://scenes", tmp_path)


async def test_errors_of_an_unreachable_store_contain_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**AWS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    storage = storage_in(tmp_path, storage_external="s3://elsewhere/x")
    with pytest.raises(StorageUnavailable, match=r"external/a.tif cannot be reached") as refused:
        async with asyncio.timeout(60):
            await storage.size("external/a.tif")
    assert "very-secret" not in str(refused.value)


class Files(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved.tif":
            self.send_response(302)
            self.send_header("location", "http://127.0.0.1:9/private")
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "a.tif").write_bytes(CONTENT)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def test_files_of_web_servers_are_copied_without_following_redirects(web_server: str, tmp_path: Path) -> None:
    source = await web.head(WebFile(f"{web_server}/a.tif", "a"))
    assert source.size_bytes == len(CONTENT)
    assert b"".join([chunk async for chunk in source.read(0)]) == CONTENT
    assert b"".join([chunk async for chunk in source.read(1000)]) == CONTENT[1000:]
    with pytest.raises(StorageUnavailable, match="returned 302"):
        await web.head(WebFile(f"{web_server}/moved.tif", "https://x/moved.tif"))
    with pytest.raises(FileMissing):
        await web.head(WebFile(f"{web_server}/gone.tif", "https://x/gone.tif"))


def test_the_zones_default_to_folders_in_the_data_folder(tmp_path: Path) -> None:
    zones = Zones.of(load_settings(data_dir=tmp_path))
    assert {name: zone.folder for name, zone in zones.zones.items()} == {
        name: tmp_path / "storage" / name for name in ("bronze", "silver", "external", "mount")
    }
