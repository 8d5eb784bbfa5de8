"""What a handler may change of its process, and the next one should find as it was."""

import os
import sys
from contextlib import suppress


class Home:
    """The folder, the environment, the mask of new files and the standard streams."""

    def __init__(self) -> None:
        self._folder = _folder()
        self._environ = dict(os.environ)
        self._mask = os.umask(0)
        os.umask(self._mask)
        self._streams = sys.stdout, sys.stderr

    def restore(self) -> bool:
        """False when it cannot be as it was."""
        for stream in (sys.stdout, sys.stderr, *self._streams):
            with suppress(Exception):  # It may be anything that a handler put there.
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
    """None when it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - as the system says it
    except FileNotFoundError:
        return None
