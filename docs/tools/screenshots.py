"""Take the screenshots of the documentation, from a real run of the tour's workflows.

    python docs/tools/screenshots.py            those that the pages show
    python docs/tools/screenshots.py FOLDER     all pages, wide and narrow, light and dark, to be looked at

A server of its own on an embedded PostgreSQL that is thrown away afterwards; Debian's Chromium looks at it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "examples" / "tour"
PICTURES = ROOT / "docs" / "images"
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
SHOWN = ("job", "dashboard", "failed", "gantt", "workflow", "submit", "node", "asset", "dashboard-dark", "job-narrow")
SOME_DONE = 250
ENDED = ("completed", "failed", "cancelled")


@contextmanager
def serving(data: Path) -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "dagmaster", "dev", "--port", "0", "--handlers", str(TOUR / "handlers.py")]
    environment = {**os.environ, "DAGMASTER_DATA_DIR": str(data), "DAGMASTER_WORKFLOWS_DIR": str(TOUR)}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, cwd=data, stdout=subprocess.PIPE, stderr=quiet, text=True)
    try:
        with httpx.Client(base_url=_address(process), timeout=10) as client:
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("api "):
            address = line.split()[-1]
        if line.startswith("ready"):
            return address
    raise SystemExit("the server did not start")


def submit(client: httpx.Client, workflow_id: str, **inputs: Any) -> str:
    answer = client.post("/api/v1/jobs", json={"workflow_id": workflow_id, "input_params": inputs}).raise_for_status()
    return str(answer.json()["job_id"])


def wait(client: httpx.Client, job_id: str, *, node: str | None = None) -> str:
    """Wait until the job has ended, or until this node is running."""
    while True:
        job = client.get(f"/api/v1/jobs/{job_id}").raise_for_status().json()
        nodes = {row["node_id"]: row["status"] for row in job["nodes"]}
        if job["status"] in ENDED or (node and nodes.get(node) == "running"):
            return job_id
        time.sleep(0.1)


def tour(client: httpx.Client) -> dict[str, str]:
    """Create some history, a failed job, one that waits for approval, an asset under review, and a running job."""
    for scenes in (6, 9, 12, 8, 10, 7):
        wait(client, submit(client, "nightly_mosaic", scenes=scenes))
    for _ in range(4):
        wait(client, submit(client, "hourly_export"))
    failed = wait(client, submit(client, "nightly_mosaic", scenes=12, is_broken=True))
    waiting = wait(client, submit(client, "nightly_mosaic", scenes=12, review=True), node="look")
    asset = submit_version(client, "2026 spring", bbox=[5.8, 47.2, 15.1, 55.1])
    approval = {"clearance_level": "ouo", "comment": "Looks right at all scales."}
    client.post(f"/api/v1/assets/{asset}/approve", json=approval).raise_for_status()
    submit_version(client, "2026 autumn", bbox=[4.1, 46.9, 15.1, 55.1])
    running = submit(client, "nightly_mosaic", scenes=900)
    return {"failed": failed, "waiting": waiting, "asset": asset, "running": running}


def submit_version(client: httpx.Client, label: str, **inputs: Any) -> str:
    """Submit a version of the asset, and wait until it is processed."""
    body = {
        "workflow_id": "nightly_mosaic",
        "input_params": {"scenes": 2, **inputs},
        "platform_id": "ddh",
        "platform_refs": {"dataset_id": "0038272", "resource_id": "mosaic"},
        "data_type": "raster",
        "version_label": label,
        "submitted_by": "hub",
    }
    submitted = client.post("/api/v1/submit", json=body).raise_for_status().json()
    wait(client, submitted["job_id"])
    return str(submitted["asset_id"])


def pictures(jobs: dict[str, str]) -> Iterator[tuple[str, str]]:
    yield "job", f"/ui/jobs/{jobs['running']}"
    yield "dashboard", "/ui/"
    yield "failed", f"/ui/jobs/{jobs['failed']}"
    yield "gantt", f"/ui/jobs/{jobs['failed']}?tab=gantt"
    yield "approvals", "/ui/approvals"
    yield "jobs", "/ui/jobs"
    yield "asset", f"/ui/assets/{jobs['asset']}"
    yield "assets", "/ui/assets"
    yield "review", "/ui/review"
    yield "requests", "/ui/requests"
    yield "workflow", "/ui/workflows/nightly_mosaic"
    yield "submit", "/ui/submit?workflow=nightly_mosaic"
    yield "node", f"/ui/jobs/{jobs['waiting']}/nodes/mosaic"
    yield "tasks", "/ui/tasks"
    yield "workers", "/ui/workers"
    yield "schedules", "/ui/schedules"
    yield "health", "/ui/health"


def look(page: Page, path: str, picture: Path) -> None:
    page.goto(path)
    page.locator("#live-state[data-state=live]").wait_for()
    page.wait_for_load_state("networkidle")
    page.locator(".notice.is-looking").wait_for(state="detached")
    page.wait_for_timeout(300)  # Charts and graphs are drawn after their data has arrived.
    page.screenshot(path=picture)


def shoot(browser: Browser, client: httpx.Client, folder: Path, *, is_all: bool) -> None:
    address, jobs = str(client.base_url), tour(client)
    while client.get(f"/api/v1/jobs/{jobs['running']}").json()["summary"]["completed"] < SOME_DONE:
        time.sleep(0.1)
    for theme, size, suffix in (("light", WIDE, ""), ("dark", WIDE, "-dark"), ("light", NARROW, "-narrow")):
        context = browser.new_context(base_url=address, viewport=size, color_scheme=theme)  # type: ignore[arg-type]
        page = context.new_page()
        for name, path in pictures(jobs):
            if is_all or name + suffix in SHOWN:
                look(page, path, folder / f"{name}{suffix}.png")
        context.close()


def main() -> None:
    is_all = len(sys.argv) > 1
    folder = Path(sys.argv[1]) if is_all else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert chromium, "screenshots need Chromium; on Debian: apt-get install chromium-headless-shell"
    with tempfile.TemporaryDirectory(prefix="dagmaster-pictures-") as data:
        Path(data).chmod(0o755)
        with serving(Path(data)) as client, sync_playwright() as playing:
            browser = playing.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            shoot(browser, client, folder, is_all=is_all)
            browser.close()


if __name__ == "__main__":
    main()
