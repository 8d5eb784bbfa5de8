"""The shared state of a simulated world: the rows, the clock, the random numbers, and the record of steps."""

from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random

from dagmaster.engine.change_set import Rules
from dagmaster.errors import DagmasterError
from dagmaster.ids import JobId
from simulation.cases import Case
from simulation.store import Store

START = datetime(2030, 1, 1, tzinfo=UTC)
JOB_ID = JobId(7)
TRACE_LENGTH = 40
PATIENCE_SECONDS = 3e9


class Violation(DagmasterError):
    """The world is in a state that must never occur."""


class Fault(StrEnum):
    """The faults that may occur."""

    OWNER_DEATH = "owner death"
    COMMIT_FAILS = "commit fails"
    COMMIT_UNKNOWN = "commit succeeds, its answer is lost"
    TAKE_OVER = "lease lost to another owner"
    WORKER_DEATH = "worker death"
    PARTITION = "worker given up while it works"
    GIVE_BACK = "task given back"
    HANG = "task hangs"
    DUPLICATE = "report sent twice"
    LOST_REPORT = "worker death before the report"
    FORGERY = "forged report"
    CLOCK_JUMP = "clock jumps ahead"
    CANCEL = "job cancelled"
    PAUSE = "job paused"
    BY_HAND = "tried again by hand"
    FULL_QUEUE = "queue full"


CHANCES = {
    Fault.OWNER_DEATH: 0.2,
    Fault.COMMIT_FAILS: 0.1,
    Fault.COMMIT_UNKNOWN: 0.1,
    Fault.TAKE_OVER: 0.2,
    Fault.WORKER_DEATH: 0.15,
    Fault.PARTITION: 0.15,
    Fault.GIVE_BACK: 0.1,
    Fault.HANG: 0.08,
    Fault.DUPLICATE: 0.3,
    Fault.LOST_REPORT: 0.08,
    Fault.FORGERY: 0.5,
    Fault.CLOCK_JUMP: 0.1,
    Fault.CANCEL: 0.04,
    Fault.PAUSE: 0.1,
    Fault.BY_HAND: 0.5,
    Fault.FULL_QUEUE: 0.2,
}
"""The probability of each fault, per opportunity."""

INTERFERING = frozenset(
    {
        Fault.OWNER_DEATH,
        Fault.TAKE_OVER,
        Fault.WORKER_DEATH,
        Fault.PARTITION,
        Fault.HANG,
        Fault.LOST_REPORT,
        Fault.CLOCK_JUMP,
    }
)
"""The faults that may use up the attempts of a task that would have succeeded."""


@dataclass(slots=True)
class Ground:
    """`closed_at` and `opened_at` are the last steps that closed and opened the queue; the rows were last decided at
    `decided_at`. `postponed` nodes were ready then and wait for their values.
    """

    case: Case
    store: Store
    rules: Rules
    rng: Random
    possible: frozenset[Fault]
    closed_queues: set[str] = field(default_factory=set)
    now: datetime = START
    step: int = 0
    is_calm: bool = False
    closed_at: int = 0
    opened_at: int = 0
    decided_at: int = 0
    postponed: frozenset[str] = frozenset()
    faults: Counter[Fault] = field(default_factory=Counter)
    trace: deque[tuple[int, datetime, str]] = field(default_factory=lambda: deque(maxlen=TRACE_LENGTH))

    def strikes(self, fault: Fault) -> bool:
        """Whether this fault occurs now."""
        if self.is_calm or fault not in self.possible or self.rng.random() >= CHANCES[fault]:
            return False
        self.faults[fault] += 1
        return True

    def note(self, text: str) -> None:
        self.trace.append((self.step, self.now, text))

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def require(holds: bool, otherwise: str, *values: object) -> None:
    """The message is formatted only when needed."""
    if not holds:
        raise Violation(otherwise.format(*values))
