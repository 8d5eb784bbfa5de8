import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.snowflakes import (
    EPOCH_MS,
    MACHINES,
    SEQUENCES,
    SnowflakeGenerator,
    new_id,
    process_identity,
    repeatable_id,
    wall_clock_ms,
)


def frozen(*readings_ms: int) -> Callable[[], int]:
    """A clock with these readings, which then stays at the last."""
    readings = list(readings_ms)
    return lambda: readings.pop(0) if len(readings) > 1 else readings[0]


def time_of(number: int) -> int:
    return (number >> 22) + EPOCH_MS


def machine_of(number: int) -> int:
    return number >> 12 & (MACHINES - 1)


def sequence_of(number: int) -> int:
    return number & (SEQUENCES - 1)


def test_an_id_contains_time_machine_and_sequence():
    generator = SnowflakeGenerator(machine_id=731, clock_ms=frozen(EPOCH_MS + 123_456))
    first, second = generator.next(), generator.next()
    assert (time_of(first), machine_of(first), sequence_of(first)) == (EPOCH_MS + 123_456, 731, 0)
    assert (time_of(second), machine_of(second), sequence_of(second)) == (EPOCH_MS + 123_456, 731, 1)


def test_an_id_of_the_last_year_fits_a_signed_bigint():
    generator = SnowflakeGenerator(MACHINES - 1, frozen(EPOCH_MS + 2**41 - 1))
    generator.become(MACHINES - 1, SEQUENCES - 1)
    assert generator.next() == 2**63 - 1


def test_a_clock_before_the_epoch_gives_valid_ids():
    generator = SnowflakeGenerator(3, frozen(0))
    assert 0 <= generator.next() < generator.next()


def test_more_than_4096_ids_in_a_millisecond_continue_in_the_next():
    generator = SnowflakeGenerator(1, frozen(EPOCH_MS + 10))
    numbers = [generator.next() for _ in range(3 * SEQUENCES)]
    assert len(set(numbers)) == len(numbers)
    assert numbers == sorted(numbers)
    assert time_of(numbers[SEQUENCES - 1]) == EPOCH_MS + 10
    assert time_of(numbers[SEQUENCES]) == EPOCH_MS + 11
    assert {machine_of(number) for number in numbers} == {1}


def test_a_clock_that_goes_backwards_gives_no_duplicates():
    generator = SnowflakeGenerator(1, frozen(EPOCH_MS + 5000, EPOCH_MS + 5001, EPOCH_MS + 20, EPOCH_MS + 5001))
    numbers = [generator.next() for _ in range(5)]
    assert [time_of(number) - EPOCH_MS for number in numbers] == [5000, 5001, 5001, 5001, 5001]
    assert numbers == sorted(set(numbers))


@given(st.lists(st.integers(EPOCH_MS - 5, EPOCH_MS + 50), min_size=1, max_size=300), st.integers(0, SEQUENCES - 1))
def test_ids_rise_whatever_the_clock_does(readings, first_sequence):
    generator = SnowflakeGenerator(1, frozen(*readings))
    generator.become(1, first_sequence)
    numbers = [generator.next() for _ in readings]
    assert numbers == sorted(set(numbers))


def test_threads_share_a_generator_without_duplicates():
    generator = SnowflakeGenerator(1)
    start = threading.Barrier(8)

    def draw(_: int) -> list[int]:
        start.wait()
        return [generator.next() for _ in range(5000)]

    with ThreadPoolExecutor(8) as threads:
        drawn = [number for numbers in threads.map(draw, range(8)) for number in numbers]
    assert len(set(drawn)) == 40_000


@pytest.mark.parametrize("machine_id", [-1, MACHINES])
def test_a_machine_number_of_more_than_ten_bits_is_refused(machine_id):
    with pytest.raises(ValueError, match="between 0 and 1023"):
        SnowflakeGenerator(machine_id)


def test_a_sequence_of_more_than_twelve_bits_is_refused():
    with pytest.raises(ValueError, match="between 0 and 4095"):
        SnowflakeGenerator(1).become(1, SEQUENCES)


def test_new_id_contains_the_current_time():
    before = wall_clock_ms()
    number = new_id()
    assert before <= time_of(number) <= wall_clock_ms() + 1  # A high first sequence may carry once.


def test_neighbouring_processes_have_different_machine_numbers(monkeypatch):
    machines = set()
    for pid in range(4000, 4000 + MACHINES):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        machines.add(process_identity()[0])
    assert len(machines) == MACHINES


def test_processes_that_share_a_machine_number_start_at_different_sequences():
    sequences = {process_identity()[1] for _ in range(50)}
    assert len(sequences) > 40


def _draw_in_child(barrier, results) -> None:
    barrier.wait()
    results.put([new_id() for _ in range(2000)])


def test_forked_children_and_their_parent_never_generate_the_same_id():
    new_id()
    fork = multiprocessing.get_context("fork")
    results, barrier = fork.Queue(), fork.Barrier(5)
    children = [fork.Process(target=_draw_in_child, args=(barrier, results)) for _ in range(4)]
    for child in children:
        child.start()
    barrier.wait()
    drawn = [new_id() for _ in range(2000)]
    for _ in children:
        drawn += results.get(timeout=90)
    for child in children:
        child.join()
    assert len(set(drawn)) == 10_000


def test_a_child_forked_while_the_lock_is_held_can_generate_ids():
    generator = new_id.__self__  # type: ignore[attr-defined]
    with generator._lock:
        child = os.fork()
        if child == 0:
            new_id()
            os._exit(0)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == (child, 0)


def test_a_repeatable_id_is_deterministic_and_near_in_time():
    job, other = new_id(), new_id() + (1 << 22)
    ids = {repeatable_id(near, f"entry {n}") for near in (job, other) for n in range(5000)}
    assert len(ids) == 10_000
    assert ids == {repeatable_id(near, f"entry {n}") for near in (job, other) for n in range(5000)}
    assert all(0 <= time_of(snowflake) - time_of(job) <= 20 * 60 * 1000 for snowflake in ids)
