"""The doors do to connections what they are meant to do."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import psycopg
import pytest
from doors import Door, Doors

pytestmark = pytest.mark.acceptance


@pytest.fixture
def two(dsn: str) -> Iterator[tuple[Door, Door]]:
    with Doors(dsn) as doors:
        yield doors.add(), doors.add()


def visit(door: Door) -> psycopg.Connection:
    return psycopg.connect(door.dsn, autocommit=True, connect_timeout=5)


def answer(conn: psycopg.Connection) -> int:
    [value] = conn.execute("SELECT 42").fetchone() or [0]
    return int(value)


def test_an_open_door_leads_to_the_server(two: tuple[Door, Door]) -> None:
    with visit(two[0]) as conn:
        assert answer(conn) == 42
        assert conn.execute("SELECT repeat('x', 1000000)").fetchone() == ("x" * 1_000_000,)


def test_a_reset_throws_out_who_is_inside_and_nobody_else(two: tuple[Door, Door]) -> None:
    with visit(two[0]) as inside, visit(two[1]) as elsewhere:
        two[0].reset()
        with pytest.raises(psycopg.OperationalError):
            answer(inside)
        assert answer(elsewhere) == 42
    with visit(two[0]) as again:
        assert answer(again) == 42


def test_nobody_comes_through_a_door_that_is_shut(two: tuple[Door, Door]) -> None:
    door, _ = two
    with visit(door) as conn:
        door.shut()
        with pytest.raises(psycopg.OperationalError):
            answer(conn)
    with pytest.raises(psycopg.OperationalError):
        visit(door)
    door.open()
    with visit(door) as conn:
        assert answer(conn) == 42


def test_what_is_said_through_a_silent_door_is_answered_when_it_opens(two: tuple[Door, Door]) -> None:
    door, other = two
    with visit(door) as conn, visit(other) as elsewhere, ThreadPoolExecutor(1) as thread:
        door.silence()
        waiting = thread.submit(answer, conn)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        assert answer(elsewhere) == 42
        door.open()
        assert waiting.result(5) == 42


def test_what_is_asked_while_answers_are_withheld_is_done_all_the_same(two: tuple[Door, Door]) -> None:
    door, other = two
    with visit(door) as conn, visit(other) as elsewhere, ThreadPoolExecutor(1) as thread:
        elsewhere.execute("CREATE SEQUENCE doorbell")
        door.withhold()
        ringing = thread.submit(conn.execute, "SELECT nextval('doorbell')")
        deadline = monotonic() + 5
        while elsewhere.execute("SELECT is_called FROM doorbell").fetchone() == (False,):
            assert monotonic() < deadline
        assert not ringing.done()
        door.open()
        assert ringing.result(5).fetchone() == (1,)


def test_a_slow_door_delays_both_ways(two: tuple[Door, Door]) -> None:
    with visit(two[0]) as conn:
        two[0].slow_down(0.2)
        began = monotonic()
        assert answer(conn) == 42
        assert monotonic() - began >= 0.4
