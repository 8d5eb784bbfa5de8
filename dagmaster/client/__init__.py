"""A typed HTTP client, for programs with and without asyncio.

It raises the errors of `dagmaster.errors` that the server raised: `UnknownJob`, `InvalidInputs`, `Unauthorized`, ...
"""

from dagmaster.client.clients import AsyncClient, Client
from dagmaster.client.errors import ClientError, JobCancelled, JobFailed, TimedOut
from dagmaster.schemas.timeline import TimelineEntry as Event

__all__ = ["AsyncClient", "Client", "ClientError", "Event", "JobCancelled", "JobFailed", "TimedOut"]
