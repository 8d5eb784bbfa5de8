"""The local data service: a process that owns a folder of tables and runs while another process needs them."""

import fcntl
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Final

from pydantic import BaseModel, ValidationError

from dagmaster.errors import EngineLost

ADDRESS: Final = "service.json"
USERS: Final = "service.users"
STARTING: Final = "service.lock"
LOG: Final = "service.log"
READY: Final = b"ready\n"
# It belongs to nobody, so that it outlives the process that starts it, and forks before it has threads.
LAUNCH: Final = "import os; os.fork() and os._exit(0); from dagmaster.data.service_process import main; main()"
HOST: Final = "127.0.0.1"
START_SECONDS: Final = 120.0
CONNECT_SECONDS: Final = 10.0
LOG_BYTES: Final = 1024 * 1024
SHOWN_BYTES: Final = 2000


class Address(BaseModel):
    """Where it listens, and the password that it wants: other users of the machine can reach the port too."""

    pid: int
    port: int
    key: str


class ServiceHold:
    """A process's hold on the service of a folder, which stops some moments after the last hold is gone.

    A hold is a shared lock on a file: the kernel drops it with the process. The service takes the same lock for itself
    before it stops, so that nobody joins one that is stopping.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._users = (folder / USERS).open("a")
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def address(self) -> Address:
        """Of the service, which is started if it does not run. Raises EngineLost if it cannot be started."""
        if (address := self._running()) is not None:
            return address
        with self._exclusively():
            if (address := self._running()) is not None:
                return address  # Another process was quicker.
            self._start()
            if (address := self._running()) is not None:
                return address
        raise EngineLost(f"the data service of {self.folder} ended as soon as it had started: {self._last_words()}")

    def release(self) -> None:
        fcntl.flock(self._users, fcntl.LOCK_UN)  # Closing is not enough if a forked child has the file open too.
        self._users.close()

    def _running(self) -> Address | None:
        address = find_address(self.folder)
        if address is None:
            return None
        login = b64encode(f":{address.key}".encode()).decode()
        connection = HTTPConnection(HOST, address.port, timeout=CONNECT_SECONDS)
        try:
            connection.request("GET", "/ping", headers={"Authorization": f"Basic {login}"})
            return address if connection.getresponse().status == HTTPStatus.OK else None
        except TimeoutError:
            return address  # It is busy, and there.
        except (OSError, HTTPException):
            return None  # Or another program has its port by now.
        finally:
            connection.close()

    def _start(self) -> None:
        (self.folder / ADDRESS).unlink(missing_ok=True)
        with _opened_log(self.folder / LOG) as log:
            try:
                started = subprocess.run(
                    [sys.executable, "-c", LAUNCH, str(self.folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    timeout=START_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise EngineLost(f"the data service of {self.folder} did not start in {START_SECONDS:g} s") from error
        if started.stdout != READY:
            raise EngineLost(f"the data service of {self.folder} could not be started: {self._last_words()}")

    def _last_words(self) -> str:
        with suppress(OSError):
            written = (self.folder / LOG).read_bytes()[-SHOWN_BYTES:].decode(errors="replace").strip()
            return written.splitlines()[-1] if written else "it wrote no log"
        return "it wrote no log"

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """One process at a time starts it."""
        with (self.folder / STARTING).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def find_address(folder: Path) -> Address | None:
    """What the last service of the folder wrote down."""
    try:
        return Address.model_validate_json((folder / ADDRESS).read_bytes())
    except (OSError, ValidationError):
        return None


def write_address(folder: Path, address: Address) -> None:
    unfinished = folder / f"{ADDRESS}.{address.pid}"
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(address.model_dump_json())
    unfinished.replace(folder / ADDRESS)


def _opened_log(path: Path) -> IO[bytes]:
    is_long = path.exists() and path.stat().st_size > LOG_BYTES
    return path.open("wb" if is_long else "ab")
