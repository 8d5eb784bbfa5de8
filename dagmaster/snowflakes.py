"""Snowflake ids: positive 63-bit numbers that sort by time and need no database."""

import os
import socket
import time
import zlib
from collections.abc import Callable
from hashlib import sha256
from threading import Lock

EPOCH_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z; 41 bits of milliseconds last until 2094
MACHINES = 1 << 10
SEQUENCES = 1 << 12
SPREAD_BITS = 42  # 20 of milliseconds, and those of machine and sequence


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class SnowflakeGenerator:
    """The ids of one machine number: 41 bits of milliseconds, 10 of machine, 12 of sequence; rising, never repeated."""

    def __init__(self, machine_id: int, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._clock_ms = clock_ms
        self._last_tick = -1
        self.become(machine_id)

    def become(self, machine_id: int, first_sequence: int = 0) -> None:
        """Continue as another machine; each millisecond starts at this sequence."""
        if not 0 <= machine_id < MACHINES:
            raise ValueError(f"a machine id is between 0 and {MACHINES - 1}, not {machine_id}")
        if not 0 <= first_sequence < SEQUENCES:
            raise ValueError(f"a sequence is between 0 and {SEQUENCES - 1}, not {first_sequence}")
        self._machine_bits = machine_id << 12
        self._tick_of_epoch = (EPOCH_MS << 12) - first_sequence
        self._lock = Lock()  # a new one: after a fork the old may be held by a thread that is not here

    def next(self) -> int:
        # Time and sequence are one counter: a full millisecond carries into the next one, and while the clock is
        # behind, the counter advances without it.
        with self._lock:
            tick = (self._clock_ms() << 12) - self._tick_of_epoch
            if tick <= self._last_tick:
                tick = self._last_tick + 1
            self._last_tick = tick
        return tick >> 12 << 22 | self._machine_bits | tick & 4095


def repeatable_id(near: int, key: str) -> int:
    """An id derived from the key, within a quarter of an hour after `near`: equal keys give equal ids."""
    places = int.from_bytes(sha256(f"{near} {key}".encode()).digest()[:6], "big") % (1 << SPREAD_BITS)
    return (near >> 22 << 22) + places


def process_identity() -> tuple[int, int]:
    """The machine number and the first sequence of this process.

    Processes of a host differ by their pid. Ten bits cannot distinguish all processes of all hosts, so each also
    starts its milliseconds at a random sequence: even those with the same number rarely collide.
    """
    host = zlib.crc32(socket.gethostname().encode())
    return (host + os.getpid()) % MACHINES, int.from_bytes(os.urandom(2), "big") % SEQUENCES


_of_this_process = SnowflakeGenerator(0)
_of_this_process.become(*process_identity())
os.register_at_fork(after_in_child=lambda: _of_this_process.become(*process_identity()))

new_id = _of_this_process.next
