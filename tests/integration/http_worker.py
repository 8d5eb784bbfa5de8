"""A worker that uses only HTTP, through httpx."""

from typing import Any

from web import Web

WORKERS = "/api/v1/workers"
OFFER = {"hostname": "far", "pid": 7, "queues": ["q"], "handlers": ["echo"], "concurrency": 4}


class HttpWorker:
    """A registered worker that the test controls."""

    def __init__(self, api: Web, worker_id: str, headers: dict[str, str]) -> None:
        self.api, self.id, self.headers = api, worker_id, headers

    async def post(self, verb: str, body: Any, status: int = 200) -> Any:
        return await self.api.post(f"{WORKERS}/{self.id}/{verb}", body, status, headers=self.headers)

    async def claim(self, limit: int = 4, wait_seconds: float = 20, **body: Any) -> list[dict[str, Any]]:
        reply = await self.post("claim", {"limit": limit, "wait_seconds": wait_seconds, **body})
        return list(reply["tasks"])

    async def report(self, *reports: dict[str, Any]) -> list[str]:
        return [outcome["outcome"] for outcome in (await self.post("results", list(reports)))["outcomes"]]

    async def beat(self, *running: str, status: int = 200, **counts: Any) -> Any:
        return await self.post("heartbeat", {"running": list(running), **counts}, status)

    async def claimed(self) -> list[str]:
        reply = await self.api.get(f"{WORKERS}/{self.id}/tasks", headers=self.headers)
        return [task["task_id"] for task in reply["tasks"]]

    async def leave(self) -> None:
        await self.api.ask("DELETE", f"{WORKERS}/{self.id}", 204, headers=self.headers)


async def registered_worker(api: Web, headers: dict[str, str] | None = None, **offer: Any) -> HttpWorker:
    reply = await api.post(WORKERS, {**OFFER, **offer}, 201, headers=headers)
    return HttpWorker(api, reply["worker_id"], headers or {})


async def submitted(api: Web, workflow_id: str = "single", **body: Any) -> int:
    return int((await api.post("/api/v1/jobs", {"workflow_id": workflow_id, **body}, 201))["job_id"])


def done(task_id: str, **fields: Any) -> dict[str, Any]:
    return {"task_id": task_id, "kind": "completed", "output": {"n": 7}, "duration_ms": 12, **fields}


def failed(task_id: str, **fields: Any) -> dict[str, Any]:
    return {"task_id": task_id, "kind": "failed", "error": "no", **fields}
