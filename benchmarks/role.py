"""One process of the measured fleet: `python -m benchmarks.role orchestrator|worker|both|api DSN CONCURRENCY QUEUE`.

BENCH_HANDLERS names more modules with handlers. With BENCH_PROFILE set to a folder, it leaves a profile for `python -m
pstats` there when it ends.
"""

import asyncio
import cProfile
import logging
import os
import sys
from pathlib import Path

from benchmarks import handlers
from benchmarks.workflows import chain
from dagmaster.authoring.catalog import Catalog
from dagmaster.cli.api_server import serving
from dagmaster.cli.runtime import stop_on_signals, tune_garbage_collection, until_stopped
from dagmaster.fleet import fleet, worker_options
from dagmaster.handlers import load_handlers, registry
from dagmaster.settings import Settings, load_settings
from dagmaster.web.server import bind, url_of


async def play(role: str, dsn: str, concurrency: int, queue: str) -> None:
    settings = load_settings(database_url=dsn)
    if role == "api":
        await serve(dsn, settings)
        return
    work = worker_options(settings, [queue], concurrency) if role != "orchestrator" else None
    stop = stop_on_signals()
    async with fleet(dsn, settings, orchestrate=role != "worker", work=work, registry=registry) as running:
        tune_garbage_collection()
        print("ready", flush=True)
        await until_stopped(running, stop)


async def serve(dsn: str, settings: Settings) -> None:
    stop = stop_on_signals()
    catalog = Catalog()
    catalog.register(chain(3).workflow)
    listener = bind("127.0.0.1", 0)
    async with fleet(dsn, settings) as running, serving(dsn, settings, running, listener, catalog, registry):
        tune_garbage_collection()
        print(f"ready {url_of(listener)}", flush=True)
        await until_stopped(running, stop)


def main() -> None:
    role, dsn, concurrency, queue = sys.argv[1:]
    logging.basicConfig(level="WARNING")
    load_handlers([handlers.__file__, *os.environ.get("BENCH_HANDLERS", "").split()])
    folder = os.environ.get("BENCH_PROFILE")
    if folder is None:
        asyncio.run(play(role, dsn, int(concurrency), queue))
        return
    profile = cProfile.Profile()
    profile.runcall(asyncio.run, play(role, dsn, int(concurrency), queue))
    profile.dump_stats(Path(folder) / f"{role}-{os.getpid()}.prof")


if __name__ == "__main__":
    main()
