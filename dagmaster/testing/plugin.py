"""The pytest fixtures. If no test uses them, only this module is imported."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from dagmaster import testing

if TYPE_CHECKING:
    from dagmaster.testing import Databases, JobUnderTest, TravelClock


@pytest.fixture(scope="session")
def dagmaster_server() -> "Iterator[Databases]":
    """One embedded PostgreSQL for each process of the test run; `fresh()` creates a database."""
    with testing.Databases() as databases:
        yield databases


@pytest.fixture
def dagmaster_database(dagmaster_server: "Databases") -> Iterator[str]:
    """The DSN of a new database, dropped after the test."""
    with dagmaster_server.fresh() as dsn:
        yield dsn


@pytest.fixture
def dagmaster_clock() -> "TravelClock":
    """The clock of this test's jobs, such as `advance(hours=2)`."""
    return testing.TravelClock()


@pytest.fixture
def dagmaster_job(
    request: pytest.FixtureRequest,
    dagmaster_database: str,
    dagmaster_clock: "TravelClock",
    tmp_path_factory: pytest.TempPathFactory,
) -> "Callable[..., JobUnderTest]":
    """A function that creates jobs: `dagmaster_job(workflow, inputs, handlers=[...])`."""
    log_dir = tmp_path_factory.mktemp("dagmaster-logs")

    def make(workflow: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> "JobUnderTest":
        # Workflows are searched in the folder of the test file too.
        own = {"clock": dagmaster_clock, "folders": [request.path.parent], "log_dir": log_dir}
        return testing.JobUnderTest(dagmaster_database, workflow, inputs, **{**own, **options})

    return make
