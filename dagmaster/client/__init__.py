"""A typed HTTP client, for programs with and without asyncio.

It raises the errors of `dagmaster.errors` that the server raised: `UnknownJob`, `InvalidInputs`, `Unauthorized`, ...
"""

from dagmaster.client.aio import AsyncClient
from dagmaster.client.errors import ClientError, JobCancelled, JobFailed, TimedOut
from dagmaster.client.sync import Client
from dagmaster.schemas.timeline import TimelineEntry as Event

__all__ = ["AsyncClient", "Client", "ClientError", "Event", "JobCancelled", "JobFailed", "TimedOut"]
