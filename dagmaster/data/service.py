"""The local data service: a process that owns a folder of tables and runs while other processes need them."""

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
# Detached, so that it outlives the process that starts it; forks before it has threads.
LAUNCH: Final = "import os; os.fork() and os._exit(0); from dagmaster.data.service_process import main; main()"
HOST: Final = "127.0.0.1"
START_SECONDS: Final = 120.0
CONNECT_SECONDS: Final = 10.0
LOG_BYTES: Final = 1024 * 1024
SHOWN_BYTES: Final = 2000


class Address(BaseModel):
    """The address and the password: other users of the machine can reach the port too."""

    pid: int
    port: int
    key: str


class ServiceHold:
    """A process's hold on the service of a folder, which stops some moments after the last hold is released.

    A hold is a shared lock on a file, which the kernel releases with the process. The service takes the same lock
    exclusively before it stops, so that no process joins a stopping service.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._users = (folder / USERS).open("a")
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def address(self) -> Address:
        """The address of the service, which is started if needed. Raises EngineLost if it cannot be started."""
        if (address := self._running()) is not None:
            return address
        with self._exclusively():
            if (address := self._running()) is not None:
                return address  # Another process has started it.
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
            return address  # It is busy, but running.
        except (OSError, HTTPException):
            return None  # Another program may have its port by now.
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
        """Only one process at a time starts it."""
        with (self.folder / STARTING).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def find_address(folder: Path) -> Address | None:
    """The address that the last service of the folder wrote."""
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
