"""Read a layer of an untrusted file as Arrow batches, in a process with only the drivers of its format."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

import pyarrow as pa
import pyogrio

from dagmaster.geo.errors import UnreadableVector
from dagmaster.geo.vector.archive import unpack
from dagmaster.geo.vector.formats import DRIVERS, UTF_8, Format, check_encoding, detect, encoding_of, is_zip, transcode
from dagmaster.geo.vector.reader_process import LAYER_KEY, REFUSED

MAX_MESSAGE_BYTES: Final = 2000
# pyogrio would import these if they are installed, which takes longer than everything else.
_UNNEEDED: Final = ("geopandas", "pandas", "pyproj", "shapely")
_PROGRAM: Final = (
    f"import sys; sys.modules.update(dict.fromkeys({_UNNEEDED})); "
    "from dagmaster.geo.vector import reader_process; reader_process.main()"
)
# Neither settings nor secrets: only the variables that Python needs to start.
_KEPT_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that is ready to be read. `encoding` is that of its strings."""

    path: Path
    kind: Format
    encoding: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """`features` is the count that the file states; negative if it states none."""

    name: str
    crs: str | None
    features: int
    geometry: str
    schema: Any
    batches: Iterator[Any]


def open_source(path: Path, folder: Path, *, encoding: str | None = None) -> SourceFile:
    """Unpack the file and convert its encoding if needed; intermediate files go to `folder`."""
    if is_zip(path):
        path = unpack(path, folder / "unpacked")
    kind = detect(path)
    if encoding is not None:
        check_encoding(encoding)
    chosen = encoding or encoding_of(path, kind)
    warnings = []
    if encoding is None and chosen != UTF_8:
        warnings.append(f"its text is not in UTF-8: it is read as {chosen}; pass `encoding` if that is wrong")
    if kind in (Format.GEOJSON, Format.CSV) and chosen != UTF_8:
        path = transcode(path, chosen, folder / "transcoded" / path.name)
    return SourceFile(path, kind, chosen, tuple(warnings))


@contextmanager
def read_layer(source: SourceFile, layer: str | None = None) -> Iterator[Layer]:
    """Raises UnreadableVector, possibly in the middle of the batches."""
    request = {"path": str(source.path), "format": source.kind, "layer": layer, "encoding": source.encoding}
    command = [sys.executable, "-P", "-W", "ignore", "-c", _PROGRAM, json.dumps(request)]
    with TemporaryFile() as messages:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages, env=_environment(source.kind)
        )
        assert process.stdout is not None
        try:
            yield _layer(source, process, messages)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()


def _environment(kind: Format) -> dict[str, str]:
    skipped = [name for name in pyogrio.list_drivers() if name not in DRIVERS[kind]]
    return {
        **{name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        # GDAL reads this only when it is loaded.
        "OGR_SKIP": ",".join(skipped),
        "OGR_SQLITE_STATIC_VIRTUAL_OGR": "NO",
        "CPL_VSIL_CURL_ALLOWED_FILENAME": "none",
        "GDAL_HTTP_PROXY": "127.0.0.1:9",
    }


def _layer(source: SourceFile, process: "subprocess.Popen[bytes]", messages: IO[bytes]) -> Layer:
    try:
        stream = pa.ipc.open_stream(process.stdout)
    except (pa.ArrowException, OSError) as error:
        raise _failure(source, process, messages) from error
    about = json.loads(stream.schema.metadata[LAYER_KEY])

    def batches() -> Iterator[Any]:
        try:
            yield from stream
        except (pa.ArrowException, OSError) as error:
            raise _failure(source, process, messages) from error
        if process.wait() != 0:
            raise _failure(source, process, messages)

    return Layer(about["name"], about["crs"], about["features"], about["geometry"], stream.schema, batches())


def _failure(source: SourceFile, process: "subprocess.Popen[bytes]", messages: IO[bytes]) -> UnreadableVector:
    assert process.stdout is not None
    process.stdout.close()  # A process that still writes would wait for its reader.
    code = process.wait()
    messages.seek(0)
    text = messages.read(MAX_MESSAGE_BYTES).decode(errors="replace").strip()
    if code == REFUSED:
        return UnreadableVector(text)
    if code < 0:
        return UnreadableVector(f"{source.path.name} cannot be read: its reader ended with signal {-code}")
    last = text.rpartition("\n")[2]
    return UnreadableVector(f"{source.path.name} cannot be read: {last or 'its reader ended early'}")
