"""Clients of the HTTP API: `python -m benchmarks.clients URL NUMBER`.

Each submits a job, polls it, and begins anew, until a line comes on stdin. Prints the time of each request in
milliseconds, as JSON. Bare sockets: a comfortable client would cost more of the machine than the measured server.
"""

import asyncio
import sys
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import orjson

from benchmarks.workflows import CHAIN_INPUTS

POLL_SECONDS = 0.5
SUBMISSION = orjson.dumps({"workflow_id": "chain-3", "input_params": CHAIN_INPUTS})


@dataclass(slots=True)
class Timings:
    reads: list[float] = field(default_factory=list)
    submissions: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def call(self, times: list[float], method: str, path: str, body: bytes = b"") -> Any:
        began = perf_counter()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length:")[2].split()[0])
        content = await self.reader.readexactly(length)
        times.append((perf_counter() - began) * 1000)
        if not answer.startswith(("http/1.1 200", "http/1.1 201")):
            raise RuntimeError(f"{answer.splitlines()[0]}: {content.decode()}")
        return orjson.loads(content)


async def use(host: str, port: int, timings: Timings, place: float) -> None:
    """Submit, poll until it has ended, and again."""
    await asyncio.sleep(place * POLL_SECONDS)
    client = Client(*await asyncio.open_connection(host, port))
    while True:
        job = await client.call(timings.submissions, "POST", "/api/v1/jobs", SUBMISSION)
        while job["status"] in ("pending", "running"):
            await asyncio.sleep(POLL_SECONDS)
            job = await client.call(timings.reads, "GET", f"/api/v1/jobs/{job['job_id']}")


async def main(address: str, number: int) -> None:
    timings, url = Timings(), urlsplit(address)
    assert url.hostname and url.port
    clients = [asyncio.create_task(use(url.hostname, url.port, timings, place / number)) for place in range(number)]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for client in clients:
        client.cancel()
    for ended in await asyncio.gather(*clients, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            timings.errors.append(repr(ended))
    print(orjson.dumps(asdict(timings)).decode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
