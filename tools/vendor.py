"""Fetch the front-end libraries from npm, at the versions named here, with their licences.

    python tools/vendor.py

Pages load nothing from other hosts: the package contains all their libraries.
"""

import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "dagmaster" / "web" / "static" / "vendor"
TESTS = ROOT / "tests" / "browser" / "vendor"

# Package, version, target, and the files to copy.
LIBRARIES = [
    ("htmx.org", "2.0.11", PAGES, ["dist/htmx.min.js"]),
    ("idiomorph", "0.8.0", PAGES, ["dist/idiomorph-ext.min.js"]),
    ("d3", "7.9.2", PAGES, ["dist/d3.min.js"]),
    ("@dagrejs/dagre", "3.1.1", PAGES, ["dist/dagre.min.js"]),
    ("feather-icons", "4.29.2", PAGES, ["dist/feather-sprite.svg"]),
    ("topojson-client", "3.1.0", PAGES, ["dist/topojson-client.min.js"]),
    ("world-atlas", "2.0.2", PAGES, ["land-110m.json"]),
    (
        "maplibre-gl",
        "6.17.0",
        PAGES,
        ["dist/maplibre-gl.mjs", "dist/maplibre-gl-worker.mjs", "dist/maplibre-gl.css"],
    ),
    ("axe-core", "4.14.0", TESTS, ["axe.min.js"]),
]


def fetch(package: str, version: str, folder: Path, files: list[str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            ["npm", "pack", "--silent", f"{package}@{version}"], cwd=scratch, check=True, stdout=subprocess.DEVNULL
        )
        [packed] = Path(scratch).glob("*.tgz")
        content = packed.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        described = json.loads(_read(archive, "package.json"))
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            (folder / Path(name).name).write_bytes(_without_map(_read(archive, name)))
        short = package.rpartition("/")[2]
        [licence] = {"LICENSE", "LICENSE.txt"} & {name.removeprefix("package/") for name in archive.getnames()}
        (folder / f"{short}.LICENSE").write_bytes(_read(archive, licence))
    return {
        "package": package,
        "version": version,
        "licence": described["license"],
        "files": [Path(name).name for name in files],
    }


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(f"package/{name}")
    assert member is not None, name
    return member.read()


def _without_map(content: bytes) -> bytes:
    """Browsers would request a source map that is not included."""
    return b"\n".join(line for line in content.split(b"\n") if not line.startswith(b"//# sourceMappingURL"))


def main() -> None:
    for folder in (PAGES, TESTS):
        fetched = [fetch(*library) for library in LIBRARIES if library[2] == folder]
        (folder / "versions.json").write_text(json.dumps(fetched, indent=2) + "\n")


if __name__ == "__main__":
    main()
