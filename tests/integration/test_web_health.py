from pathlib import Path

from fleet import rows, single
from web import web

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.implicit import QueueRules
from dagmaster.model.access import Role


async def test_a_server_without_a_fleet_is_ready_and_degraded(dsn: str) -> None:
    async with web(dsn, single()) as api:
        assert (await api.get("/livez"))["status"] == "alive"
        assert (await api.get("/readyz"))["status"] == "ready"
        health = await api.get("/health")
        assert health["status"] == "degraded"
        bad = {check["name"] for check in health["checks"] if check["status"] != "healthy"}
        assert bad == {"orchestrators", "workers", "queues"}


async def test_with_a_fleet_the_server_is_healthy(dsn: str) -> None:
    async with web(dsn, single(), runs=True) as api:
        assert (await api.get("/health"))["status"] == "healthy"
        assert (await api.get("/health/workers"))["details"] == {"active": 1}


async def test_a_server_with_another_schema_is_not_ready(dsn: str) -> None:
    async with web(dsn) as api:
        await rows(dsn, "UPDATE dagapp.alembic_version SET version_num = '9999'")
        assert "schema" in (await api.get("/readyz", 503))["error"]["message"]
        assert (await api.get("/health", 503))["status"] == "unhealthy"
        await api.get("/health/schema", 503)
        await api.get("/livez")


async def test_a_stopping_server_is_not_ready(dsn: str) -> None:
    async with web(dsn) as api:
        api.app.state.is_stopping = True
        await api.get("/readyz", 503)
        await api.get("/livez")


async def test_without_a_key_only_the_status_is_shown(dsn: str) -> None:
    async with web(dsn) as api:
        key = await api.key("me", Role.VIEWER)
        strange = (await api.get("/health"))["checks"]
        forged = (await api.get("/health", headers={"Authorization": "Bearer dmt_forged"}))["checks"]
        known = (await api.get("/health", headers=key))["checks"]
        assert all(check["message"] is None and check["details"] is None for check in [*strange, *forged])
        assert all(check["message"] for check in known)


async def test_an_unknown_check_lists_the_existing_ones(dsn: str) -> None:
    async with web(dsn) as api:
        assert "database" in (await api.get("/health/nothing", 404))["error"]["message"]
        assert (await api.get("/"))["name"] == "dagmaster"


async def test_a_task_without_a_queue_makes_the_system_unhealthy(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "lost.yaml").write_text("workflow_id: lost\nnodes:\n  work: {handler: echo}\n")
    async with web(dsn, runs=True) as api:
        api.services.catalog = Catalog(tmp_path, queues=QueueRules(default_queue=None))
        health = await api.get("/health", 503)
        [queues] = [check for check in health["checks"] if check["name"] == "queues"]
        assert (health["status"], queues["status"]) == ("unhealthy", "unhealthy")
        assert "lost.yaml" in queues["details"]["problems"][0]


async def test_health_names_an_orchestrator_without_progress(dsn: str) -> None:
    async with web(dsn) as api:
        await rows(
            dsn,
            """INSERT INTO dagapp.dag_orchestrators (orchestrator_id, hostname, pid, host_key, status, stats)
               VALUES ('7', 'somewhere', 1, 'k', 'running', '{"no_progress_seconds": 90, "last_error": "too much"}')""",
        )
        health = await api.get("/health/orchestrators", 503)
        assert health["status"] == "unhealthy"
        assert "7 on somewhere" in health["message"]
