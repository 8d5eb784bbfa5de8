"""The second process of the floor's rounds: says when it was notified."""

import asyncio
import sys
from time import perf_counter

from benchmarks.floor_statements import LISTEN
from dagmaster.store.connect import connect


async def main(dsn: str) -> None:
    async with await connect(dsn, application="floor listener") as conn:
        await conn.execute(LISTEN)
        print("ready", flush=True)
        async for _ in conn.notifies():
            print(perf_counter(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
