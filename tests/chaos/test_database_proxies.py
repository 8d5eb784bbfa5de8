"""The proxies affect connections as intended."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import psycopg
import pytest
from database_proxies import Proxies, Proxy

pytestmark = pytest.mark.acceptance


@pytest.fixture
def two(dsn: str) -> Iterator[tuple[Proxy, Proxy]]:
    with Proxies(dsn) as proxies:
        yield proxies.add(), proxies.add()


def visit(proxy: Proxy) -> psycopg.Connection:
    return psycopg.connect(proxy.dsn, autocommit=True, connect_timeout=30)


def answer(conn: psycopg.Connection) -> int:
    [value] = conn.execute("SELECT 42").fetchone() or [0]
    return int(value)


def test_an_open_proxy_forwards_to_the_server(two: tuple[Proxy, Proxy]) -> None:
    with visit(two[0]) as conn:
        assert answer(conn) == 42
        assert conn.execute("SELECT repeat('x', 1000000)").fetchone() == ("x" * 1_000_000,)


def test_a_reset_closes_only_the_proxys_connections(two: tuple[Proxy, Proxy]) -> None:
    with visit(two[0]) as inside, visit(two[1]) as elsewhere:
        two[0].reset()
        with pytest.raises(psycopg.OperationalError):
            answer(inside)
        assert answer(elsewhere) == 42
    with visit(two[0]) as again:
        assert answer(again) == 42


def test_a_closed_proxy_accepts_no_connection(two: tuple[Proxy, Proxy]) -> None:
    proxy, _ = two
    with visit(proxy) as conn:
        proxy.shut()
        with pytest.raises(psycopg.OperationalError):
            answer(conn)
    with pytest.raises(psycopg.OperationalError):
        visit(proxy)
    proxy.open()
    with visit(proxy) as conn:
        assert answer(conn) == 42


def test_requests_to_a_silent_proxy_are_answered_when_it_opens(two: tuple[Proxy, Proxy]) -> None:
    proxy, other = two
    with visit(proxy) as conn, visit(other) as elsewhere, ThreadPoolExecutor(1) as thread:
        proxy.silence()
        waiting = thread.submit(answer, conn)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        assert answer(elsewhere) == 42
        proxy.open()
        assert waiting.result(60) == 42


def test_statements_run_while_responses_are_withheld(two: tuple[Proxy, Proxy]) -> None:
    proxy, other = two
    with visit(proxy) as conn, visit(other) as elsewhere, ThreadPoolExecutor(1) as thread:
        elsewhere.execute("CREATE SEQUENCE doorbell")
        proxy.withhold()
        ringing = thread.submit(conn.execute, "SELECT nextval('doorbell')")
        deadline = monotonic() + 60
        while elsewhere.execute("SELECT is_called FROM doorbell").fetchone() == (False,):
            assert monotonic() < deadline
        assert not ringing.done()
        proxy.open()
        assert ringing.result(60).fetchone() == (1,)


def test_a_slow_proxy_delays_both_directions(two: tuple[Proxy, Proxy]) -> None:
    with visit(two[0]) as conn:
        two[0].slow_down(0.2)
        began = monotonic()
        assert answer(conn) == 42
        assert monotonic() - began >= 0.4
