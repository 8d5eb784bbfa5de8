"""References to files, and the zones that they are confined to."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import SplitResult, unquote, urlsplit

from dagmaster.errors import Misconfigured
from dagmaster.settings import Settings
from dagmaster.storage.errors import ReferenceRefused

ZONES: Final = ("bronze", "silver", "external", "mount")
OBJECT_SCHEMES: Final = ("s3", "az", "abfs", "abfss")
MAX_REFERENCE_CHARS: Final = 2048
MAX_SHOWN_CHARS: Final = 120
_AZURE_HOST: Final = ".blob.core.windows.net"
_CURL: Final = "/vsicurl/"


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A local file, with all symbolic links resolved."""

    path: Path
    reference: str


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object below the URL of a zone."""

    zone_url: str
    key: str
    reference: str


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file on an allowed web server. Its URL may be signed."""

    url: str = field(repr=False)
    reference: str = ""


Location = LocalFile | RemoteObject | WebFile


@dataclass(frozen=True, slots=True)
class Zone:
    """A local folder, or a container of an object store with an optional prefix."""

    name: str
    folder: Path | None = None
    url: str = ""

    @property
    def container(self) -> str:
        """The name of the container, for references such as `container/path`."""
        if self.folder is not None:
            return self.folder.name
        parts = urlsplit(self.url)
        if parts.scheme == "https":
            return parts.path.strip("/").partition("/")[0]
        return parts.username or parts.hostname or ""

    def locate(self, parts: tuple[str, ...]) -> Location:
        reference = "/".join((self.name, *parts))
        if self.folder is None:
            return RemoteObject(self.url, "/".join(parts), reference)
        if (path := _below(self.folder.joinpath(*parts), self.folder)) is None:
            raise ReferenceRefused(f"{_shown(reference)} leads out of its zone through a symbolic link")
        return LocalFile(path, reference)


@dataclass(frozen=True, slots=True)
class Zones:
    """The allowed targets of references: the zones, other folders by absolute path, and web servers."""

    zones: Mapping[str, Zone]
    folders: tuple[Path, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        below = settings.data_dir / "storage"
        configured = {name: getattr(settings, f"storage_{name}") for name in ZONES}
        zones = {name: _zone(name, target or str(below / name)) for name, target in configured.items()}
        hosts = frozenset(host.lower().rstrip(".") for host in settings.storage_allowed_hosts)
        return cls(zones, tuple(Path(folder).expanduser() for folder in settings.storage_folders), hosts)

    def locate(self, reference: str) -> Location:
        """Raises ReferenceRefused."""
        if not reference or len(reference) > MAX_REFERENCE_CHARS or not reference.isprintable() or "\\" in reference:
            raise ReferenceRefused(
                f"a reference to a file has 1 to {MAX_REFERENCE_CHARS} printable characters and no backslash"
            )
        plain = reference.removeprefix(_CURL)
        if "://" in plain:
            return self._locate_url(plain)
        if plain != reference or plain.startswith("/vsi"):
            raise ReferenceRefused(
                f"{_shown(reference)}: of GDAL's virtual file systems only /vsicurl/https:// is accepted"
            )
        if plain.startswith("/"):
            return self._locate_path(plain)
        first, *rest = _segments(plain)
        zone = self._find_zone(first)
        if zone is None or not rest:
            known = ", ".join(f"{name}/..." for name in self.zones)
            raise ReferenceRefused(f"{_shown(reference)}: a file is named {known}, or by its container and path")
        return zone.locate(tuple(rest))

    def locate_folder(self, reference: str) -> Location:
        """Like `locate`, but also accepts a whole zone. Raises ReferenceRefused."""
        name = reference.removesuffix("/")
        zone = self._find_zone(name)
        return zone.locate(()) if zone is not None else self.locate(name)

    def _find_zone(self, name: str) -> Zone | None:
        return self.zones.get(name) or next((zone for zone in self.zones.values() if zone.container == name), None)

    def _locate_path(self, text: str) -> LocalFile:
        path = Path("/", *_segments(text.removeprefix("/")))
        for zone in self.zones.values():
            if zone.folder is not None and (inside := _below(path, zone.folder)) is not None:
                return LocalFile(inside, f"{zone.name}/{inside.relative_to(zone.folder.resolve())}")
        for folder in self.folders:
            if (inside := _below(path, folder)) is not None:
                return LocalFile(inside, str(inside))
        raise ReferenceRefused(
            f"{_shown(text)} is outside of the storage zones and of the folders that DAGMASTER_STORAGE_FOLDERS allows"
        )

    def _locate_url(self, url: str) -> Location:
        parts = _split(url)
        for zone in self.zones.values():
            if zone.folder is None and (key := _key_below(zone.url, parts)) is not None:
                return zone.locate(key)
        shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        if parts.scheme != "https":
            raise ReferenceRefused(f"{_shown(shown)} is not below the URL of a storage zone")
        if (parts.hostname or "").rstrip(".") not in self.hosts:
            raise ReferenceRefused(
                f"files of {parts.hostname or 'that host'} are not accepted; an operator can allow the host with "
                "DAGMASTER_STORAGE_ALLOWED_HOSTS"
            )
        return WebFile(url, shown)


def _zone(name: str, target: str) -> Zone:
    scheme = target.partition("://")[0] if "://" in target else ""
    if scheme in ("", "file"):
        folder = Path(urlsplit(target).path if scheme else target).expanduser()
        return Zone(name, folder=Path(os.path.abspath(folder)))  # noqa: PTH100 - links are resolved at each use
    is_azure = scheme == "https" and (urlsplit(target).hostname or "").endswith(_AZURE_HOST)
    if scheme not in OBJECT_SCHEMES and not is_azure:
        raise Misconfigured(
            f"DAGMASTER_STORAGE_{name.upper()} should be a folder, s3://bucket/prefix, az://container/prefix or "
            f"https://account{_AZURE_HOST}/container"
        )
    if urlsplit(target).query:
        raise Misconfigured(
            f"DAGMASTER_STORAGE_{name.upper()} should have no query: a SAS is set as AZURE_STORAGE_SAS_TOKEN"
        )
    return Zone(name, url=target.rstrip("/"))


def _segments(text: str) -> tuple[str, ...]:
    """The parts of a path. None may climb or hide a separator, even when decoded."""
    parts = tuple(text.split("/"))
    for part in parts:
        decoded = unquote(unquote(part))
        if decoded in ("", ".", "..") or "/" in decoded or "\\" in decoded or not decoded.isprintable():
            raise ReferenceRefused(f"{_shown(text)}: the part {_shown(part)!r} cannot be in the path of a file")
    return parts


def _below(path: Path, folder: Path) -> Path | None:
    """The path with resolved links, if it is below the folder."""
    resolved = path.resolve()
    return resolved if resolved.is_relative_to(folder.resolve()) else None


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ReferenceRefused("the URL is not valid") from error
    if parts.password is not None or (parts.scheme == "https" and parts.username is not None):
        raise ReferenceRefused("the URL must not contain a user or a password")
    return parts


def _key_below(zone_url: str, parts: SplitResult) -> tuple[str, ...] | None:
    zone = urlsplit(zone_url)
    prefix = f"{zone.path.rstrip('/')}/"
    if (parts.scheme, parts.netloc) != (zone.scheme, zone.netloc) or not parts.path.startswith(prefix):
        return None
    segments = _segments(parts.path.removeprefix(prefix))
    return tuple(map(unquote, segments)) if parts.scheme == "https" else segments


def _shown(text: str) -> str:
    text = text.partition("?")[0]
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
