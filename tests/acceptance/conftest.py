import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import held_port
from processes import Stage


@pytest.fixture
def stage(dsn: str, tmp_path: Path) -> Iterator[Stage]:
    """Processes on a fresh database. Their output is shown if the test fails."""
    stage = Stage(dsn, tmp_path)
    yield stage
    sys.stderr.write(stage.close())


@pytest.fixture
def port() -> Iterator[str]:
    """For a server that is started again at the same address."""
    with held_port() as port:
        yield port
