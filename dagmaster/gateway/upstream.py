"""The client of the API, which makes every change, and the errors that callers get if it fails."""

import asyncio
import logging
from typing import Final, TypeVar

import httpx

from dagmaster.client import AsyncClient, ClientError
from dagmaster.client.call import Call
from dagmaster.errors import BadGateway, DagmasterError, GatewayTimeout, Misconfigured, Unauthorized, Unavailable
from dagmaster.gateway.scrub import Scrubber

T = TypeVar("T")

RETRIES: Final = 2
UNREACHABLE: Final = "the processing service cannot be reached at the moment; try again later"
FAILED: Final = "the processing service failed; try again later"
LATE: Final = "the processing service did not answer in time; try again later"

log = logging.getLogger(__name__)


class Upstream:
    """Retries only requests that may be repeated, within one time limit for all attempts."""

    def __init__(self, client: AsyncClient, scrubber: Scrubber, timeout_seconds: float) -> None:
        self._client, self._scrubber, self._timeout_seconds = client, scrubber, timeout_seconds

    async def ask(self, call: Call[T]) -> T:
        """Raises BadGateway, GatewayTimeout, or the error of the API without internals."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._client.ask(call)
        except TimeoutError:
            raise GatewayTimeout(LATE) from None
        except (Unavailable, ClientError, Unauthorized, Misconfigured) as error:
            raise self._failure(call, error) from error
        except DagmasterError as error:
            raise self._refusal(error) from error

    def _failure(self, call: Call[T], error: DagmasterError) -> DagmasterError:
        log.warning("%s %s failed: %s", call.method, call.path, error)
        if isinstance(error.__cause__, httpx.TimeoutException):
            return GatewayTimeout(LATE)
        if isinstance(error.__cause__, httpx.TransportError):
            return BadGateway(UNREACHABLE)
        return BadGateway(FAILED)

    def _refusal(self, error: DagmasterError) -> DagmasterError:
        """The same error class: the caller can fix the request."""
        refusal = type(error)(self._scrubber.text(str(error)))
        problems = [self._scrubber.text(str(problem)) for problem in getattr(error, "problems", ())]
        if problems:
            refusal.problems = problems  # type: ignore[attr-defined]
        return refusal
