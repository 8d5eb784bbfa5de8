"""Fields of the API that other programs depend on."""

import asyncio
import threading
from pathlib import Path

from fleet import fan, fleet, graph, rows, single, task
from web import web

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.implicit import QueueRules
from dagmaster.model.workflow import DependsOn
from dagmaster.store.connect import opened
from dagmaster.web.catalog_reload import Reloading

GOOD = "workflow_id: {name}\nnodes: {{a: {{handler: echo}}}}\n"


async def test_the_totals_of_all_orchestrators_are_at_the_top_level(dsn: str) -> None:
    broken = single("fail", workflow_id="broken", params={"message": "e2e step 12 of n7: 3.5 s"})
    async with web(dsn, broken, single(), runs=True) as api:
        for name in ("broken", "broken", "single"):
            submitted = await api.post("/api/v1/jobs", {"workflow_id": name}, 201)
            await api.fleet.ended(int(submitted["job_id"]))
        await api.until_counted(3)
        stats = await api.get("/api/v1/orchestrator/stats")
        assert stats["failing_handlers"]["fail"]["failed"] == 2
        assert stats["failing_queues"]["q"]["failed"] == 2
        assert stats["workflows"]["broken"]["ended"] == 2
        assert (stats["workflows"]["single"]["success_rate"], stats["workflows"]["broken"]["success_rate"]) == (1, 0)
        activity = await api.get("/api/v1/orchestrator/activity")
        assert activity["processing_node_id"] in ("work", "END")
        failures = await api.get("/api/v1/metrics/failures?limit=1")
        assert failures["total"] == 2
        [cause] = failures["items"]
        assert "e2e step <n> of n7: <n> s" in cause["error_message"]


async def test_tasks_are_listed_including_ended_ones(dsn: str) -> None:
    async with web(dsn, single(), single("nobody", workflow_id="waits"), runs=True) as api:
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        await api.fleet.completed(int(submitted["job_id"]))
        waiting = await api.post("/api/v1/jobs", {"workflow_id": "waits"}, 201)
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        listed = (await api.get("/api/v1/tasks"))["items"]
        assert [(task["job_id"], task["state"], task["handler"]) for task in listed] == [
            (waiting["job_id"], "waiting", "nobody"),
            (submitted["job_id"], "completed", "echo"),
        ]
        second = await api.get("/api/v1/tasks?limit=1&offset=1")
        assert [task["job_id"] for task in second["items"]] == [submitted["job_id"]]
        ended = await api.get(f"/api/v1/tasks?state=completed&job_id={submitted['job_id']}")
        assert [task["task_id"] for task in ended["items"]] == [f"{submitted['job_id']}_work_0"]
        assert (await api.get("/api/v1/tasks?state=failed"))["items"] == []


async def test_a_graph_distinguishes_any_of_from_all_of(dsn: str) -> None:
    one_of = task("echo", "END", depends_on=DependsOn(any_of=("a", "b")))
    either = graph({"a": task("echo", "b"), "b": task("echo"), "c": one_of}, "either", start="a")
    async with web(dsn, either, runs=True) as api:
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "either"}, 201)
        for path in (f"/api/v1/jobs/{submitted['job_id']}/graph", "/api/v1/workflows/either"):
            rules = {(edge["source"], edge["target"]): edge["rule"] for edge in (await api.get(path))["edges"]}
            assert (rules["a", "c"], rules["b", "c"], rules["c", "END"]) == ("any_of", "any_of", "all_of")


async def test_a_broken_workflow_file_degrades_the_health(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD.format(name="good"))
    (tmp_path / "bad.yaml").write_text("workflow_id: bad\nnodes: {a: {handlr: echo}}\n")
    async with web(dsn, runs=True) as api:
        api.services.catalog = Catalog(tmp_path, queues=QueueRules(None, "q", is_open=True))
        health = await api.get("/health")
        [check] = [entry for entry in health["checks"] if entry["name"] == "workflows"]
        assert (health["status"], check["status"], check["details"]) == (
            "degraded",
            "degraded",
            {"files": ["bad.yaml"]},
        )


async def test_workflow_files_are_read_outside_the_event_loop(dsn: str, tmp_path: Path) -> None:
    threads = []

    class Recorded(Catalog):
        def reload(self) -> None:
            threads.append(threading.current_thread())
            super().reload()

    async with web(dsn) as api:
        api.services.catalog = Recorded(tmp_path, queues=QueueRules(None, "q", is_open=True))
        threads.clear()
        for path in ("workflows/reload", "schedules/sync", "commands/cache.invalidate"):
            await api.post(f"/api/v1/{path}")
    assert len(threads) == 3
    assert threading.main_thread() not in threads


async def test_a_reload_reaches_other_servers(dsn: str, tmp_path: Path) -> None:
    async with web(dsn) as first, web(dsn) as other:
        for api in (first, other):
            api.services.catalog = Catalog(tmp_path, queues=QueueRules(None, "q", is_open=True))
        forgotten = asyncio.Event()
        watching = Reloading(other.services, forgotten.set)
        async with opened(dsn, application="test") as conn:
            await watching.look(conn)
            (tmp_path / "new.yaml").write_text(GOOD.format(name="new"))
            for ask in ("/api/v1/workflows/reload", "/api/v1/commands/cache.invalidate"):
                await first.post(ask, {} if "commands" in ask else None)
                await watching.look(conn)
                assert forgotten.is_set()
                forgotten.clear()
            await watching.look(conn)
        assert not forgotten.is_set(), "once for each time that it was asked for"
        assert "new" in other.services.catalog.workflows


async def test_the_items_of_a_fan_out_have_keys(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.worker(owner=await running.orchestrator())
        items = ["berlin", 7, {"id": "x1", "n": 1}, {"n": 2}, [1], True]
        await running.completed(await running.submit(fan(), {"items": items}))
        query = "SELECT fan_out_item_key AS key FROM dagapp.dag_node_states WHERE fan_out_index IS NOT NULL"
        keys = await rows(dsn, f"{query} ORDER BY fan_out_index")
        assert [item["key"] for item in keys] == ["berlin", "7", "x1", None, None, None]
