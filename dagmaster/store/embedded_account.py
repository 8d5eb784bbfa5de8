"""The account that runs the embedded PostgreSQL, which refuses to run as root, and its access to folders."""

import fcntl
import logging
import os
import pwd
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from dagmaster.errors import EmbeddedServerFailed

logger = logging.getLogger(__name__)

STAND_IN: Final = "pgserver"  # for root
ELSEWHERE: Final = "choose another folder with DAGMASTER_DATA_DIR, or a server with DAGMASTER_DATABASE_URL"
RUN_FOLDER: Final = Path("/run")


class Account(NamedTuple):
    uid: int
    gid: int


def make_private(folder: Path, account: Account) -> None:
    """Another user may have created a folder of this name in /tmp, and could listen in our place."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (account.uid, os.geteuid()):
        raise EmbeddedServerFailed(
            f"{folder}, which is needed for the server's socket, belongs to another user; remove it"
        )
    if status.st_uid != account.uid:
        os.chown(folder, *account)
    folder.chmod(0o700)


def account_for(pgdata: Path) -> Account:
    """The server's user if we are root: the folder's owner, or a dedicated user."""
    if pgdata.exists() and pgdata.stat().st_uid != 0:
        return Account(pgdata.stat().st_uid, pgdata.stat().st_gid)
    # Two concurrent `useradd` may both report success although only one user remains.
    with (RUN_FOLDER / "dagmaster-useradd.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _stand_in()


def _stand_in() -> Account:
    with suppress(KeyError):
        return Account(*pwd.getpwnam(STAND_IN)[2:4])
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", STAND_IN]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        return Account(*pwd.getpwnam(STAND_IN)[2:4])
    except (OSError, subprocess.CalledProcessError, KeyError) as error:
        raise EmbeddedServerFailed(
            f"PostgreSQL does not run as root, and the user {STAND_IN} could not be created ({error}): "
            "create it, or start as another user"
        ) from error


def let_through(account: Account, path: Path) -> None:
    """Let the account traverse the path: adds only o+x, and only on root's own folders."""
    for folder in reversed(path.parents):
        status = folder.stat()
        if status.st_mode & stat.S_IXOTH or (status.st_uid == account.uid and status.st_mode & stat.S_IXUSR):
            continue
        if status.st_uid != 0:
            raise EmbeddedServerFailed(
                f"the user with the id {account.uid}, who runs the server, cannot traverse {folder}; {ELSEWHERE}"
            )
        logger.warning(
            "letting other users traverse %s (chmod o+x), because the embedded PostgreSQL does not run as root", folder
        )
        folder.chmod(stat.S_IMODE(status.st_mode) | stat.S_IXOTH)
