import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagmaster.store.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def pg_server() -> Iterator[EmbeddedServer]:
    """One real server per test process, in a folder of its own."""
    # Not below pytest's temporary folder: every run closes that to other users, and as root the server is one.
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    with EmbeddedServer.start(folder) as server:
        yield server
    shutil.rmtree(folder)
