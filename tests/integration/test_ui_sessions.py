"""Sessions identify their user and cannot be forged."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fleet import single, wait_until
from hypothesis import given
from hypothesis import strategies as st
from web import Web, web
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from dagmaster.model.access import Role
from dagmaster.store.connect import opened
from dagmaster.store.keys import revoke_key
from dagmaster.web.access import EVERYBODY
from dagmaster.web.sessions import COOKIE, Session, new_session, open_session
from dagmaster.web.ui.headers import HEADERS
from dagmaster.web.ui.static_files import fingerprint

SECRET = b"a secret of the tests"
OURS = "http://127.0.0.1"


# The cookie itself.


@given(
    st.text() | st.text(alphabet=st.characters(codec="latin-1")) | st.binary().map(lambda data: data.decode("latin-1"))
)
def test_a_malformed_cookie_opens_no_session(text: str) -> None:
    assert open_session(text, SECRET) is None


@given(st.data())
def test_a_tampered_cookie_is_refused(data: st.DataObject) -> None:
    sealed = new_session("key").sealed(SECRET)
    place = data.draw(st.integers(0, len(sealed) - 1))
    letter = data.draw(st.characters(codec="ascii").filter(lambda character: character != sealed[place]))
    # The last character of unpadded base64 has unused bits.
    changed = open_session(sealed[:place] + letter + sealed[place + 1 :], SECRET)
    assert changed is None


def test_a_session_is_restored_until_it_expires() -> None:
    session = new_session("key")
    assert open_session(session.sealed(SECRET), SECRET) == session
    assert open_session(session.sealed(b"another"), SECRET) is None
    assert open_session(Session("key", "nonce", int(time()) - 1).sealed(SECRET), SECRET) is None
    assert session.csrf(SECRET) != new_session("key").csrf(SECRET)


def test_a_signed_cookie_of_another_format_is_refused() -> None:
    strange: Any = Session("key", "nonce", None)
    assert open_session(strange.sealed(SECRET), SECRET) is None


# Signing in.


@asynccontextmanager
async def guarded(dsn: str, **options: Any) -> AsyncIterator[Web]:
    """A key exists, so every request needs one."""
    async with web(dsn, single(), **options) as api:
        await api.key("first")
        yield api


async def text_of(api: Web, name: str, role: Role) -> str:
    return (await api.key(name, role))["Authorization"].removeprefix("Bearer ")


async def sign_in(api: Web, role: Role = Role.OPERATOR, name: str = "ada", **form: str) -> httpx.Response:
    key = await text_of(api, name, role)
    return await api.client.post("/ui/login", data={"key": key, **form})


async def csrf(api: Web) -> str:
    match = re.search(r'name="csrf-token" content="([^"]+)"', await api.get("/ui/jobs"))
    assert match
    return match[1]


async def test_without_a_session_every_page_redirects_to_the_login_and_back(dsn: str) -> None:
    async with guarded(dsn) as api:
        for path in ("/ui/", "/ui/jobs?status=failed", "/ui/submit", "/ui/nonsense"):
            answer = await api.client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/login?next={quote(path)}")
        live = await api.client.get("/ui/jobs", headers={"X-Live": "1"})
        assert (live.status_code, live.headers["x-login"]) == (401, "/ui/login?next=/ui/jobs")


async def test_a_wrong_key_is_refused_and_sets_no_cookie(dsn: str) -> None:
    async with guarded(dsn) as api:
        for key in ("", "wrong", "dm_aaaaaaaaaaaa_" + "a" * 43, "\0", "ключ", "x" * 10_000):
            answer = await api.client.post("/ui/login", data={"key": key})
            assert answer.status_code == 401
            assert "unknown, revoked or expired" in answer.text
            assert "set-cookie" not in answer.headers


async def test_a_worker_key_cannot_sign_in(dsn: str) -> None:
    async with guarded(dsn) as api:
        answer = await sign_in(api, Role.WORKER)
        assert answer.status_code == 403
        assert "This is a worker key" in answer.text


async def test_the_cookie_is_http_only_and_same_site(dsn: str) -> None:
    async with guarded(dsn) as api:
        cookie = (await sign_in(api)).headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Path=/" in cookie
        assert "Secure" not in cookie
        key = await text_of(api, "eve", Role.VIEWER)
        for options in ({"base_url": "https://127.0.0.1"}, {"headers": {"X-Forwarded-Proto": "https"}}):
            async with httpx.AsyncClient(**{"base_url": OURS, "transport": api.client._transport, **options}) as client:  # type: ignore[arg-type]
                assert "Secure" in (await client.post("/ui/login", data={"key": key})).headers["set-cookie"]


@pytest.mark.parametrize(
    ("target", "goes_to"),
    [
        ("/ui/jobs?status=failed", "/ui/jobs?status=failed"),
        ("//evil.example", "/ui/"),
        ("https://evil.example/ui/", "/ui/"),
        ("/ui\\evil.example", "/ui/"),
        ("/\\evil.example", "/ui/"),
        ("/ui/\\..//evil.example", "/ui/"),
        ("/uievil", "/ui/"),
        ("javascript:alert(1)", "/ui/"),
        ("/ui/login?next=/ui/logout", "/ui/"),
        ("/ui/logout", "/ui/"),
        ("", "/ui/"),
    ],
)
async def test_the_login_never_redirects_to_another_site(dsn: str, target: str, goes_to: str) -> None:
    async with guarded(dsn) as api:
        assert (await sign_in(api, next=target)).headers["location"] == goes_to
        again = await api.client.get("/ui/login", params={"next": target})
        assert again.headers["location"] == goes_to


async def test_another_site_cannot_sign_users_in(dsn: str) -> None:
    async with guarded(dsn) as api:
        key = await text_of(api, "eve", Role.VIEWER)
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": OURS, "Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            answer = await api.client.post("/ui/login", data={"key": key}, headers=headers)
            assert answer.status_code == 403 and "set-cookie" not in answer.headers
        ours = {"Origin": OURS, "Sec-Fetch-Site": "same-origin"}
        assert (await api.client.post("/ui/login", data={"key": key}, headers=ours)).status_code == 303


async def test_signing_out_ends_the_session(dsn: str) -> None:
    async with guarded(dsn) as api:
        await sign_in(api)
        await api.get("/ui/jobs")
        assert (await api.client.get("/ui/logout")).status_code == 303
        assert (await api.client.get("/ui/jobs")).status_code == 303


# Acting.


async def test_changes_require_the_csrf_token(dsn: str) -> None:
    async with guarded(dsn) as api:
        await sign_in(api)
        token = await csrf(api)
        body = {"workflow_id": "single"}
        for headers in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "wrong"}, {"X-CSRF-Token": token + "x"}):
            await api.post("/api/v1/jobs", body, 403, headers=headers)
        async with guarded_client(api) as other:
            await other.post("/ui/login", data={"key": await text_of(api, "eve", Role.OPERATOR)})
            stolen = await other.post("/api/v1/jobs", json=body, headers={"X-CSRF-Token": token})
            assert stolen.status_code == 403
        answer = await api.client.post("/api/v1/jobs", json=body, headers={"X-CSRF-Token": token})
        assert answer.status_code == 201


@asynccontextmanager
async def guarded_client(api: Web) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=OURS, transport=httpx.ASGITransport(api.app)) as client:
        yield client


async def test_without_keys_a_page_of_another_origin_is_refused(dsn: str) -> None:
    async with web(dsn, single()) as api:
        for origin in ("http://localhost:3000", "https://evil.example", "null", "http://127.0.0.1:1"):
            await api.post("/api/v1/workflows/reload", None, 401, headers={"Origin": origin})
        await api.post("/api/v1/workflows/reload", None, 200, headers={"Origin": OURS})


async def test_malformed_cookies_redirect_to_the_login(dsn: str) -> None:
    async with guarded(dsn) as api:
        expired = Session("key", "nonce", int(time()) - 1)
        secret = await api.app.state.keyring.session_secret(None)
        for cookie in ("", ".", "a.b", "\xff\xfe", "%00", "[]." * 50, expired.sealed(secret), '"\\777"', "x" * 4000):
            headers = [(b"cookie", f"{COOKIE}={cookie}".encode("latin-1"))]
            assert (await api.client.get("/ui/jobs", headers=headers)).status_code == 303
            assert (await api.client.post("/api/v1/jobs", json={}, headers=headers)).status_code == 401


async def test_a_revoked_key_ends_its_session(dsn: str) -> None:
    async with guarded(dsn) as api:
        await sign_in(api, name="gone")
        await api.get("/ui/jobs")
        await revoke(api, "gone")
        api.app.state.keyring._known.clear()
        assert (await api.client.get("/ui/jobs")).status_code == 303


async def revoke(api: Web, name: str) -> None:
    async with opened(api.dsn, application="test") as conn:
        await revoke_key(conn, name, actor="test")


# The socket.


async def test_a_websocket_requires_the_same_origin(dsn: str) -> None:
    async with guarded(dsn) as api, api.real_server() as url:
        await sign_in(api)
        cookie = {"Cookie": f"{COOKIE}={api.client.cookies[COOKIE]}"}
        address = url.replace("http", "ws") + "/ws/live"
        assert await closed_with(address, cookie, "http://localhost:3000") == 4403
        assert await closed_with(address, {}, url) == 4401
        async with connect(address, additional_headers=cookie, origin=url) as socket:  # type: ignore[arg-type]
            assert '"beat"' in str(await socket.recv())


async def test_a_websocket_is_closed_when_its_key_is_revoked(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagmaster.web.access.TRUST_SECONDS", 0.1)
    monkeypatch.setattr("dagmaster.web.ui.change_feed.BEAT_SECONDS", 0.2)
    async with guarded(dsn) as api, api.real_server() as url:
        await sign_in(api, name="gone")
        cookie = {"Cookie": f"{COOKIE}={api.client.cookies[COOKIE]}"}
        address = url.replace("http", "ws") + "/ws/live"
        async with connect(address, additional_headers=cookie, origin=url) as socket:  # type: ignore[arg-type]
            await socket.recv()
            await revoke(api, "gone")
            with pytest.raises(ConnectionClosed) as ended:
                while True:
                    await socket.recv()
        assert ended.value.rcvd and ended.value.rcvd.code == 4401


@asynccontextmanager
async def quiet_page(api: Web, url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """An idle page; the next heartbeat is far away."""
    monkeypatch.setattr("dagmaster.web.ui.change_feed.BEAT_SECONDS", 600)
    monkeypatch.setattr("dagmaster.web.ui.change_feed.POLL_SECONDS", 0.02)
    async with connect(url.replace("http", "ws") + "/ws/live", origin=url) as socket:  # type: ignore[arg-type]
        for _ in ("the newest", "all is quiet"):
            await socket.recv()
        assert api.app.state.change_feed.watchers == 1
        yield


async def test_a_closed_page_is_forgotten_at_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(dsn) as api, api.real_server() as url:
        async with quiet_page(api, url, monkeypatch):
            pass
        await wait_until(lambda: api.app.state.change_feed.watchers == 0)


async def test_an_open_page_does_not_keep_the_server_from_stopping(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with web(dsn) as api, AsyncExitStack() as pages:
        async with api.real_server() as url:
            await pages.enter_async_context(quiet_page(api, url, monkeypatch))
        assert api.app.state.change_feed.watchers == 0
    assert "graceful shutdown exceeded" not in caplog.text


async def closed_with(address: str, headers: dict[str, str], origin: str) -> int:
    async with connect(address, additional_headers=headers, origin=origin) as socket:  # type: ignore[arg-type]
        with pytest.raises(ConnectionClosed) as ended:
            await socket.recv()
    assert ended.value.rcvd
    return ended.value.rcvd.code


# What is shown.


@pytest.mark.parametrize(
    ("role", "sees", "does_not"),
    [
        (Role.VIEWER, "/ui/workers", "/ui/submit"),
        (Role.REVIEWER, "/ui/workers", "/ui/submit"),
        (Role.PARTNER, "/ui/submit", "/ui/workers"),
        (Role.OPERATOR, "/ui/submit", "/ui/keys"),
        (Role.ADMIN, "/ui/keys", "/ui/nonsense"),
    ],
)
async def test_the_role_decides_what_is_visible(dsn: str, role: Role, sees: str, does_not: str) -> None:
    async with guarded(dsn) as api:
        await sign_in(api, role)
        jobs = await api.get("/ui/jobs")
        assert f'href="{sees}"' in jobs and f'href="{does_not}"' not in jobs
        await api.get(sees)
        refused = await api.client.get(does_not)
        assert refused.status_code == (404 if role is Role.ADMIN else 403)
        assert 'href="/ui/jobs"' in refused.text


async def test_every_page_has_the_security_headers(dsn: str) -> None:
    async with web(dsn) as api:

        @api.app.get("/ui/static-failure", dependencies=[EVERYBODY])
        async def fail() -> None:
            raise ZeroDivisionError

        api.app.router.routes.insert(0, api.app.router.routes.pop())
        for path, status in {
            "/ui/jobs": 200,
            "/ui/static/app.css": 200,
            "/ui/static/none.css": 404,
            "/ui/nonsense": 404,
            "/ui/jobs/0": 404,
            "/ui/login": 303,
            "/ui/jobs?offset=x": 422,
            "/ui/static-failure": 500,
        }.items():
            answer = await api.client.get(path)
            assert answer.status_code == status, path
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, path
            if status >= 400:
                assert 'href="/ui/' in answer.text and "Traceback" not in answer.text


async def test_pages_report_a_database_outage_with_a_link_back(dsn: str) -> None:
    async with web(dsn) as api:
        await api.services.pool.close()
        answer = await api.client.get("/ui/jobs")
        assert answer.status_code == 503
        assert "Database unavailable" in answer.text and 'href="/ui/"' in answer.text
        assert answer.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


async def test_static_files_are_cached_and_compressed(dsn: str) -> None:
    async with web(dsn) as api:
        page = await api.get("/ui/")
        [style] = re.findall(r'href="([^"]+/app\.css)"', page)
        assert set(re.findall(r'(?:href|src)="(/ui/static/[^/"]+/)', page)) == {style.removesuffix("app.css")}
        answer = await api.client.get(style, headers={"Accept-Encoding": "gzip"})
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert answer.headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize("folder", ["", "v-0123456789abcdef/"])
async def test_static_files_without_the_current_version_must_revalidate(dsn: str, folder: str) -> None:
    async with web(dsn) as api:
        answer = await api.client.get(f"/ui/static/{folder}app.css")
        assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-cache")
        known = {"If-None-Match": answer.headers["ETag"]}
        assert (await api.client.get(f"/ui/static/{folder}app.css", headers=known)).status_code == 304
        assert (await api.client.get(f"/ui/static/{folder}none.css")).status_code == 404


def test_the_fingerprint_changes_with_any_file(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "same", "longer", "renamed")]
    for folder, name, content in zip(folders, "aaab", ("1", "1", "12", "1"), strict=True):
        folder.mkdir()
        (folder / name).write_text(content)
    first, same, *others = map(fingerprint, folders)
    assert first == same
    assert len({first, *others}) == 3
