"""Process state that a handler may change and that is restored for the next one."""

import os
import sys
from contextlib import suppress


class ProcessState:
    """Working folder, environment, umask and standard streams."""

    def __init__(self) -> None:
        self._folder = _folder()
        self._environ = dict(os.environ)
        self._mask = os.umask(0)
        os.umask(self._mask)
        self._streams = sys.stdout, sys.stderr

    def restore(self) -> bool:
        """False if the state cannot be restored."""
        for stream in (sys.stdout, sys.stderr, *self._streams):
            with suppress(Exception):  # A handler may have replaced it with anything.
                stream.flush()
        sys.stdout, sys.stderr = self._streams
        os.umask(self._mask)
        self._restore_environ()
        return self._restore_folder() and not any(stream.closed for stream in self._streams)

    def _restore_environ(self) -> None:
        if (now := dict(os.environ)) == self._environ:
            return
        for name in now.keys() - self._environ.keys():
            del os.environ[name]
        os.environ.update(self._environ)

    def _restore_folder(self) -> bool:
        if self._folder is None or _folder() == self._folder:
            return True
        try:
            os.chdir(self._folder)
        except OSError:
            return False
        return True


def _folder() -> str | None:
    """The working folder; None if it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - as the system returns it
    except FileNotFoundError:
        return None
