"""Run the demo and save a screenshot half-way through: docs/images/demo.svg."""

import asyncio
import io
import re
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.cli.job_watch import follow
from dagmaster.cli.live import render
from dagmaster.cli.progress import JobView
from dagmaster.ids import JobId
from dagmaster.model.edges import find_inbound, sort_topologically
from dagmaster.model.workflow import EndNode, StartNode
from dagmaster.store.connect import opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.jobs import list_jobs

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "demo.svg"
WIDTH, HEIGHT = 100, 24
WANTED = 0.6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with EmbeddedServer.start(Path(folder) / "data") as server:
            demo = ["dagmaster", "run", str(ROOT / "workflows" / "demo.yaml"), "--data-dir", str(server.data_dir)]
            with subprocess.Popen([*demo, "--json"], stdout=subprocess.DEVNULL):
                views = asyncio.run(_watch(server.dsn))
    _draw(min(views, key=lambda view: abs(_done(view) - WANTED)))


async def _watch(dsn: str) -> list[JobView]:
    """The output as a terminal would show it."""
    views: list[JobView] = []
    await follow(dsn, await _first_job(dsn), _steps(), views.append)
    return views


async def _first_job(dsn: str) -> JobId:
    while True:
        await asyncio.sleep(0.05)
        async with opened(dsn, application="picture") as conn:
            is_made = await (await conn.execute("SELECT to_regclass('dagapp.dag_jobs') AS made")).fetchone()
            jobs = await list_jobs(conn) if is_made and is_made["made"] else []
            if jobs:
                return jobs[0]["job_id"]


def _steps() -> list[str]:
    nodes = load_workflow(ROOT / "workflows" / "demo.yaml", queues=QueueRules(default_queue="default")).nodes
    order = sort_topologically(find_inbound(nodes))
    return [name for name in order if not isinstance(nodes[name], StartNode | EndNode)]


def _done(view: JobView) -> float:
    fans = [node.fan for node in view.nodes if node.fan is not None]
    return fans[0].ended / fans[0].total if fans else 0.0


def _draw(view: JobView) -> None:
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
    console.print("[bold]$[/] make demo\n")
    console.print(render(view, WIDTH, HEIGHT))
    picture = console.export_svg(title="dagmaster run workflows/demo.yaml", unique_id="demo")
    # Viewers need not fetch a font.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main()
