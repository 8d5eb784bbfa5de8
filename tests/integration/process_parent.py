"""A worker process to be killed: it prints the pids of its handler process and of that one's child."""

import asyncio

import process_handlers

from dagmaster.handlers import HandlerContext, registry
from dagmaster.handlers.contract import Progress
from dagmaster.worker.processes.children import Children

assert process_handlers  # imported for the handlers that it registers


async def main() -> None:
    children = Children(registry, [], max_output_bytes=1000)

    def tell(progress: Progress) -> None:
        print(children.pids["1_n_0"], int(progress.current), flush=True)  # noqa: T201 - to the test

    name = "process.with_subprocess"
    ctx = HandlerContext(task_id="1_n_0", job_id=1, node_id="n", handler=name, progress_sink=tell)
    await children.run(registry.get(name), ctx, lambda _: None)


if __name__ == "__main__":
    asyncio.run(main())
