from typing import Any

import psycopg
from fleet import OrchestratorRole, rows, single
from web import Web, web

from dagmaster.model.access import Role
from dagmaster.store.schema import HEAD


async def audited(api: Web, **options: Any) -> list[tuple[str | None, str | None]]:
    return [(entry["command"], entry["actor"]) for entry in (await api.get("/api/v1/audit", **options))["items"]]


async def test_a_command_runs_at_once_and_is_audited_once(dsn: str) -> None:
    async with web(dsn, single()) as api:
        me = await api.key("me")
        done = await api.post("/api/v1/commands/cache.invalidate", headers=me)
        assert (done["command"], done["result"]["workflows"]) == ("cache.invalidate", 1)
        done = await api.post("/api/v1/commands/schema.migrate", {"params": {}}, headers=me)
        assert done["result"] == {"before": HEAD, "after": HEAD, "is_changed": False}
        traces = await audited(api, headers=me)
        assert traces[:2] == [("schema.migrate", "me"), ("cache.invalidate", "me")]
        listed = (await api.get("/api/v1/commands", headers=me))["commands"]
        assert [command["name"] for command in listed] == [
            "schema.migrate",
            "cache.invalidate",
            "metadata.publish",
            "metadata.unpublish",
            "metadata.publish_external",
            "asset.reindex",
        ]


async def test_commands_require_permission_and_unknown_ones_are_named(dsn: str) -> None:
    async with web(dsn) as api:
        operator, viewer = await api.key("op", Role.OPERATOR), await api.key("viewer", Role.VIEWER)
        await api.post("/api/v1/commands/schema.migrate", status=403, headers=operator)
        await api.post("/api/v1/commands/cache.invalidate", status=403, headers=viewer)
        unknown = await api.post("/api/v1/commands/nothing", status=404, headers=operator)
        assert "cache.invalidate" in unknown["error"]["message"]
        await api.post("/api/v1/commands/cache.invalidate", {"params": {"x": 1}}, 422, headers=operator)


async def test_the_first_key_must_be_an_admins(dsn: str) -> None:
    async with web(dsn) as api:
        refused = await api.post("/api/v1/keys", {"name": "first", "role": "viewer"}, 409)
        assert "admin" in refused["error"]["message"]
        key = await api.post("/api/v1/keys", {"name": "first", "role": "admin"}, 201)
        me = {"Authorization": f"Bearer {key['key']}"}
        await api.post("/api/v1/keys", {"name": "second", "role": "viewer"}, 201, headers=me)


async def test_keys_can_be_created_shown_once_and_revoked(dsn: str) -> None:
    async with web(dsn) as api:
        me = await api.key("me")
        key = await api.post("/api/v1/keys", {"name": "robot", "role": "viewer"}, 201, headers=me)
        robot = {"Authorization": f"Bearer {key['key']}"}
        await api.get("/api/v1/jobs", headers=robot)
        await api.post("/api/v1/keys", {"name": "x", "role": "viewer"}, 403, headers=robot)
        await api.post("/api/v1/keys", {"name": "robot", "role": "viewer"}, 409, headers=me)
        assert key["key"] not in (await api.client.get("/api/v1/keys", headers=me)).text
        revoked = await api.ask("DELETE", f"/api/v1/keys/{key['key_id']}", 200, headers=me)
        assert revoked["revoked_at"]
        await api.post("/api/v1/commands/cache.invalidate", headers=me)
        await api.get("/api/v1/jobs", 401, headers=robot)
        await api.ask("DELETE", "/api/v1/keys/nothing", 404, headers=me)


async def test_keys_of_partners_and_reviewers_can_be_limited_to_one_platform(dsn: str) -> None:
    async with web(dsn) as api:
        me = await api.key("me")
        body = {"name": "ddh", "role": "partner", "platform_id": "ddh"}
        assert (await api.post("/api/v1/keys", body, 201, headers=me))["platform_id"] == "ddh"
        listed = {key["name"]: key["platform_id"] for key in (await api.get("/api/v1/keys", headers=me))["keys"]}
        assert listed == {"me": None, "ddh": "ddh"}
        refused = await api.post("/api/v1/keys", {**body, "name": "x", "role": "viewer"}, 422, headers=me)
        assert "only partner and reviewer keys may be for one" in refused["error"]["message"]
        unknown = await api.post("/api/v1/keys", {**body, "name": "x", "platform_id": "dhd"}, 404, headers=me)
        assert (unknown["code"], "arcgis, ddh, geonode" in unknown["detail"]) == ("unknown_platform", True)


async def test_the_schema_is_shown_and_deployed_only_with_confirmation(dsn: str) -> None:
    async with web(dsn) as api:
        status = await api.get("/api/v1/bootstrap/status")
        assert (status["revision"], status["is_current"]) == (HEAD, True)
        tables = {table["name"] for table in (await api.get("/api/v1/bootstrap/tables"))["tables"]}
        assert {"dag_jobs", "dag_job_events"} <= tables
        assert "CREATE TABLE dagapp.dag_jobs" in (await api.get("/api/v1/bootstrap/ddl"))["ddl"]
        await api.post("/api/v1/bootstrap/deploy", {}, 422)
        assert not (await api.post("/api/v1/bootstrap/deploy", {"dry_run": True}))["is_changed"]
        assert await audited(api) == []
        assert not (await api.post("/api/v1/bootstrap/deploy", {"confirm": "yes"}))["is_changed"]
        await api.post("/api/v1/bootstrap/migrate")
        assert [command for command, _ in await audited(api)] == ["bootstrap.migrate", "bootstrap.deploy"]


async def test_destroying_data_requires_permission_a_key_and_the_database_name(dsn: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    path = "/api/v1/bootstrap/rebuild"
    async with web(dsn, single()) as api:
        await api.post(path, {"confirm": name}, 403)
        me = await api.key("me")
        await api.post(path, {"confirm": name}, 403, headers=me)
        await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201, headers=me)
    async with web(dsn, allow_destructive_bootstrap=True) as api:
        await api.post(path, {"confirm": "yes"}, 422, headers=me)
        operator = await api.key("op", Role.OPERATOR)
        await api.post(path, {"confirm": name}, 403, headers=operator)
        assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_jobs")) == 1
        assert (await api.post(path, {"confirm": name}, headers=me))["after"] == HEAD
        assert await rows(dsn, "SELECT 1 FROM dagapp.dag_jobs") == []
        assert await audited(api) == [("bootstrap.rebuild", "me")]
        await api.post(path, {"confirm": name}, 403)


async def test_a_handler_can_be_tried_only_where_allowed_and_with_a_key(dsn: str) -> None:
    path = "/api/v1/test/handler/echo"
    async with web(dsn) as api:
        me = await api.key("me")
        await api.post(path, {}, 403, headers=me)
        await api.get("/api/v1/test/handlers", 403, headers=me)
    async with web(dsn, enable_handler_test=True) as api:
        tried = await api.post(path, {"params": {"a": 1, "password": "x"}}, headers=me)
        assert tried["success"]
        assert "x" not in str(tried["output"].values())
        handlers = (await api.get("/api/v1/test/handlers", headers=me))["handlers"]
        assert "echo" in [handler["name"] for handler in handlers]
        await api.post("/api/v1/test/handler/nothing", {}, 404, headers=me)
        await api.post(path, {"timeout_seconds": 61}, 422, headers=me)
        await rows(dsn, "UPDATE dagapp.dag_api_keys SET revoked_at = now()")
        await api.post("/api/v1/commands/cache.invalidate", headers=me)
        await api.post(path, {}, 403)


async def test_the_doctor_reports_and_repairs(dsn: str) -> None:
    async with web(dsn) as api:
        await rows(
            dsn,
            """INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority,
                   owner_id, started_at, completed_at, created_at, updated_at)
               VALUES (17, 'w', 1, 'h', 'completed', 0, 'gone', now(), now(), now() - interval '1 hour',
                   now() - interval '1 hour')""",
        )
        findings = {finding["name"]: finding for finding in (await api.get("/api/v1/doctor"))["findings"]}
        assert findings["owned_ended_jobs"]["is_open"]
        assert findings["owned_ended_jobs"]["examples"][0]["job_id"] == "17"
        repaired = {finding["name"]: finding for finding in (await api.post("/api/v1/doctor/repair"))["findings"]}
        assert not repaired["owned_ended_jobs"]["is_open"]
        [trace] = (await api.get("/api/v1/jobs/17/timeline?event_types=command"))["events"]
        assert trace["data"]["command"] == "doctor.repair"


async def test_an_orchestrator_in_the_same_process_shows_current_statistics(dsn: str) -> None:
    async with web(dsn, single(), runs=True) as api:
        job = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        await api.fleet.completed(int(job["job_id"]))
        await api.until_counted(1)
        [me] = [role.id for role in api.fleet.roles if isinstance(role, OrchestratorRole)]
        text = await api.get("/metrics")
        assert f'dagmaster_jobs_completed_total{{instance="{me}"}} 1.0' in text
        assert (await api.get("/api/v1/orchestrator/stats"))["counters"]["jobs_completed"] == 1
