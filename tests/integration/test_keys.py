import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from fleet import rows

from dagmaster.errors import Conflict, Invalid, UnknownKey, UnknownPlatform
from dagmaster.model.access import PLATFORM_ROLES, Role
from dagmaster.store.connect import Connection, opened
from dagmaster.store.keys import any_keys, find_key, list_keys, new_key, revoke_key
from dagmaster.store.secrets import get_secret


async def make(conn: Connection, name: str = "ci", role: Role = Role.OPERATOR, **options: Any) -> str:
    return (await new_key(conn, name=name, role=role, created_by="ada", **options)).text


async def commands(dsn: str) -> list[dict[str, str]]:
    events = await rows(dsn, "SELECT * FROM dagapp.dag_job_events WHERE job_id = 0 ORDER BY event_id")
    assert {row["event_type"] for row in events} <= {"command"}
    return [row["event_data"] for row in events]


# Keys


async def test_a_key_is_found_by_its_value_and_stored_only_as_a_hash(conn: Connection, dsn: str) -> None:
    new = await new_key(conn, name="ci", role=Role.OPERATOR, created_by="ada")
    prefix, key_id, secret = new.text.split("_", 2)
    assert (prefix, key_id, len(key_id), len(secret)) == ("dm", new.key_id, 12, 43)
    key = await find_key(conn, new.text)
    assert key is not None
    assert (key.key_id, key.name, key.role, key.created_by) == (new.key_id, "ci", Role.OPERATOR, "ada")
    [row] = await rows(dsn, "SELECT * FROM dagapp.dag_api_keys")
    assert secret not in str(row)
    assert secret not in str(await commands(dsn))


async def test_an_invalid_key_is_not_found(conn: Connection) -> None:
    text = await make(conn)
    other = await make(conn, "other")
    wrong_secret = text[:16] + other[16:]
    for wrong in ("", "dm_", text[:-1], text + "x", text.upper(), wrong_secret, f"Bearer {text}", text + "\n"):
        assert await find_key(conn, wrong) is None, wrong
    assert await find_key(conn, text) is not None


async def test_a_revoked_key_is_refused(conn: Connection) -> None:
    text = await make(conn)
    revoked = await revoke_key(conn, "ci", actor="bob")
    assert revoked.revoked_at is not None
    assert await find_key(conn, text) is None
    with pytest.raises(UnknownKey, match="'ci'"):
        await revoke_key(conn, "ci", actor="bob")


async def test_an_expired_key_is_refused(conn: Connection, dsn: str) -> None:
    text = await make(conn, expires_at=datetime.now(UTC) + timedelta(days=1))
    assert await find_key(conn, text) is not None
    await rows(dsn, "UPDATE dagapp.dag_api_keys SET expires_at = now() - interval '1 second'")
    assert await find_key(conn, text) is None


async def test_an_id_takes_precedence_over_a_name(conn: Connection) -> None:
    first = await new_key(conn, name="first", role=Role.VIEWER, created_by="ada")
    await make(conn, first.key_id)
    assert (await revoke_key(conn, first.key_id, actor="ada")).name == "first"
    assert (await revoke_key(conn, first.key_id, actor="ada")).name == first.key_id


async def test_a_name_can_be_reused_when_its_key_is_revoked(conn: Connection) -> None:
    await make(conn)
    with pytest.raises(Conflict, match="a key named 'ci' already; revoke it first"):
        await make(conn)
    await revoke_key(conn, "ci", actor="ada")
    await make(conn)
    assert [key.revoked_at is None for key in await list_keys(conn)] == [False, True]


async def test_keys_exist_until_the_last_is_revoked(conn: Connection) -> None:
    assert not await any_keys(conn)
    await make(conn)
    assert await any_keys(conn)
    await revoke_key(conn, "ci", actor="ada")
    assert not await any_keys(conn)


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "a\nb", "x" * 129])
async def test_an_unreadable_name_is_refused(conn: Connection, name: str) -> None:
    with pytest.raises(Invalid):
        await make(conn, name)


async def test_a_key_cannot_expire_in_the_past(conn: Connection) -> None:
    with pytest.raises(Invalid, match="in the past"):
        await make(conn, expires_at=datetime.now(UTC))


async def test_the_last_use_is_recorded_once_a_minute(conn: Connection) -> None:
    text = await make(conn)
    first, second, third = [await find_key(conn, text) for _ in range(3)]
    assert first is not None and second is not None and third is not None
    assert first.last_used_at is None
    assert second.last_used_at == third.last_used_at != None  # noqa: E711


async def test_a_key_is_found_while_its_row_is_locked(conn: Connection, dsn: str) -> None:
    text = await make(conn)
    async with opened(dsn, application="locker") as locker, locker.transaction():
        await locker.execute("SELECT FROM dagapp.dag_api_keys FOR UPDATE")
        async with asyncio.timeout(60):
            assert await find_key(conn, text) is not None


async def test_creating_and_revoking_keys_are_system_events(conn: Connection, dsn: str) -> None:
    key = await new_key(conn, name="ci", role=Role.WORKER, created_by="ada")
    with pytest.raises(Conflict):
        await make(conn)
    await revoke_key(conn, key.key_id, actor="bob")
    details = {"key_id": key.key_id, "name": "ci", "role": "worker", "platform_id": None}
    assert await commands(dsn) == [
        {"command": "keys.create", "actor": "ada", **details},
        {"command": "keys.revoke", "actor": "bob", **details},
    ]


@pytest.mark.parametrize("role", [Role.PARTNER, Role.REVIEWER])
async def test_a_key_can_be_limited_to_one_platform(conn: Connection, role: Role) -> None:
    key = await find_key(conn, await make(conn, "ddh", role, platform_id="ddh"))
    assert key is not None and key.platform_id == "ddh"
    assert [listed.platform_id for listed in await list_keys(conn)] == ["ddh"]
    assert (await revoke_key(conn, "ddh", actor="ada")).platform_id == "ddh"


@pytest.mark.parametrize("role", sorted(set(Role) - PLATFORM_ROLES))
async def test_keys_of_other_roles_are_for_all_platforms(conn: Connection, role: Role) -> None:
    with pytest.raises(Invalid, match="only partner and reviewer keys may be for one"):
        await make(conn, role=role, platform_id="ddh")


async def test_the_platform_of_a_key_must_exist(conn: Connection) -> None:
    with pytest.raises(UnknownPlatform, match="'dhd'; there are arcgis, ddh, geonode"):
        await make(conn, role=Role.PARTNER, platform_id="dhd")
    assert not await any_keys(conn)


# Secrets


async def test_concurrent_first_uses_of_a_secret_get_the_same_one(dsn: str) -> None:
    async def ask(name: str) -> bytes:
        async with opened(dsn, application="test") as conn:
            return await get_secret(conn, name)

    first, *others = await asyncio.gather(*(ask("signing") for _ in range(4)))
    assert others == [first] * 3
    assert len(first) == 43
    assert await ask("another") != first


# On the command line


@pytest.fixture
def installation(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)


@pytest.mark.usefixtures("installation")
def test_create_prints_only_the_key_on_stdout() -> None:
    done = call("keys", "create", "--name", "ci", "--role", "operator")
    assert done.code == 0, done.err
    assert done.out.startswith("dm_") and done.out.count("\n") == 1
    assert "not shown again" in done.err
    [listed] = call("keys", "list", "--json").json
    assert (listed["name"], listed["role"], listed["state"]) == ("ci", "operator", "in use")
    assert "key_hash" not in listed


@pytest.mark.usefixtures("installation")
def test_keys_are_listed_until_they_are_revoked() -> None:
    key = call("keys", "create", "--name", "ci", "--role", "viewer", "--expires-days", 1, "--by", "ada", "--json").json
    assert key["key"].startswith(f"dm_{key['key_id']}_")
    assert key["key_id"] in call("keys", "list").out
    assert call("keys", "revoke", "ci").out == f"Revoked key {key['key_id']} (ci)\n"
    assert call("keys", "list").err.startswith("no keys")
    [revoked] = call("keys", "list", "--all", "--json").json
    assert (revoked["state"], revoked["created_by"]) == ("revoked", "ada")


@pytest.mark.usefixtures("installation")
def test_a_key_for_one_platform_is_listed_with_it() -> None:
    done = call("keys", "create", "--name", "ddh", "--role", "reviewer", "--platform", "ddh")
    assert (done.code, "with the role reviewer for platform ddh" in done.err) == (0, True)
    assert [line.split()[1:4] for line in call("keys", "list").out.splitlines()] == [
        ["NAME", "ROLE", "PLATFORM"],
        ["ddh", "reviewer", "ddh"],
    ]
    wrong = call("keys", "create", "--name", "x", "--role", "partner", "--platform", "dhd")
    assert (wrong.code, "there are arcgis, ddh, geonode" in wrong.err) == (2, True)


@pytest.mark.usefixtures("installation")
def test_usage_errors_say_what_to_do() -> None:
    assert "dagmaster keys list" in call("keys", "revoke", "nobody").err
    assert call("keys", "create", "--name", "ci", "--role", "king").code == 2
    assert call("keys", "create", "--name", "ci", "--role", "admin", "--expires-days", 0).code == 2
    call("keys", "create", "--name", "ci", "--role", "admin")
    again = call("keys", "create", "--name", "ci", "--role", "admin")
    assert (again.code, again.out) == (2, "")
    assert "revoke it first" in again.err


async def test_no_secret_can_be_derived_from_another(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        for chosen in (None, b"chosen by the operator"):
            signing = await get_secret(conn, "callback_signing", chosen=chosen)
            assert signing == await get_secret(conn, "callback_signing", chosen=chosen)
            assert signing != await get_secret(conn, "task_tokens", chosen=chosen)
            assert chosen is None or chosen not in signing
