"""A world in which a job is run: owners, workers, messages and a clock, moved one small step at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from dagmaster.engine.messages import Cancel
from dagmaster.engine.turn import Rules
from dagmaster.simulation.cases import Case
from dagmaster.simulation.endings import check_rest
from dagmaster.simulation.forging import forge
from dagmaster.simulation.ground import JOB_ID, PATIENCE_SECONDS, START, Fault, Ground, Violation
from dagmaster.simulation.invariants import Watch
from dagmaster.simulation.owners import Owner
from dagmaster.simulation.store import Store
from dagmaster.simulation.workers import Remote, Worker, execute

MAX_CALM_STEPS = 3_000


@dataclass(frozen=True, slots=True)
class Weather:
    """How rough it gets: the faults that may happen, and how many steps they have for it."""

    faults: frozenset[Fault]
    steps: int
    slice_size: int = 2_000
    dispatch_timeout_seconds: float | None = None
    zombie_after_seconds: float = PATIENCE_SECONDS
    local_workers: bool = True
    steps_after_end: int = 30


Step = Callable[[], bool]


class World:
    """Each step does one thing to one actor, or nothing; after each, the invariants are looked at."""

    def __init__(self, case: Case, weather: Weather, rng: Random) -> None:
        rules = Rules(
            dispatch_timeout_seconds=weather.dispatch_timeout_seconds,
            zombie_after_seconds=weather.zombie_after_seconds,
            slice_size=weather.slice_size,
            rng=Random(rng.random()),
        )
        store = Store(JOB_ID, case.blueprint.graph, case.inputs, "owner-1", START)
        self.ground = Ground(case, store, rules, rng, weather.faults)
        self.weather = weather
        self.watch = Watch(self.ground)
        self._remote = Remote(self.ground, 2)
        self._owners: list[Owner] = []
        self._appointed = 0
        for _ in range(2):
            self._appoint()
        steps: list[tuple[int, Step]] = [
            (10, self._decide),
            (10, self._commit),
            (7, self._remote.claim),
            (7, self._remote.work),
            (4, self._work_locally),
            (8, self._remote.arrive),
            (1, self._remote.watch),
            (2, self._remote.lose_one),
            (2, self._remote.rescue),
            (2, self._die),
            (2, self._take_over),
            (2, self._forge),
            (2, self._cancel),
            (6, self._pass_time),
        ]
        self._steps = [step for _, step in steps]
        # Each world has its own tempo: slow owners here, slow messages there.
        self._weights = [weight * rng.choice((0.3, 1, 1, 2)) for weight, _ in steps]

    def run(self) -> None:
        """Rough weather first; then it is calm, and the job must come to its end."""
        after = self.weather.steps_after_end
        for step in self.ground.rng.choices(self._steps, self._weights, k=self.weather.steps):
            self._move(step)
            after -= self.ground.store.is_over
            if after < 0:
                break
        self.ground.is_calm = True
        calm = self._calm_steps()
        for _ in range(MAX_CALM_STEPS):
            if not any(self._move(step) for step in calm):
                check_rest(self.ground)
                return
        raise Violation(f"the job never ended; open are {self.watch.open_nodes()}")

    def _move(self, step: Step) -> bool:
        self.ground.step += 1
        try:
            moved = step()
            if moved:
                self.watch.look()
        except Violation:
            raise
        except Exception as error:  # Whatever the engine raises is what the simulation looks for.
            raise Violation(f"{type(error).__name__}: {error}") from error
        return moved

    # Owners.

    def _appoint(self) -> None:
        self._appointed += 1
        self._owners.append(Owner(self.ground, f"owner-{self._appointed}", has_worker=self.weather.local_workers))

    def _decide(self) -> bool:
        return self.ground.rng.choice(self._owners).decide()

    def _commit(self) -> bool:
        return self.ground.rng.choice(self._owners).commit()

    def _die(self) -> bool:
        """The process of an owner ends, with the worker in it, wherever it just was."""
        if not self.ground.strikes(Fault.OWNER_DEATH):
            return False
        dead = self._owners.pop(self.ground.rng.randrange(len(self._owners)))
        self.ground.note(f"{dead.name} dies{' with a turn unwritten' if dead.decided else ''}")
        if dead.local is not None:
            self.ground.store.active_workers.discard(dead.local.name)
        self._appoint()
        return True

    def _take_over(self) -> bool:
        """An orphan finds an owner; sometimes one that lives on loses the job as well, and does not know it."""
        store = self.ground.store
        is_orphan = all(owner.name != store.job.owner_id for owner in self._owners)
        if store.is_over or not (is_orphan or self.ground.strikes(Fault.TAKE_OVER)):
            return False
        heir = self.ground.rng.choice(self._owners)
        heir.lose()
        store.take_over(heir.name)
        self.ground.note(f"{heir.name} takes over")
        return True

    # Everybody else.

    def _work_locally(self) -> bool:
        ready = [(owner, owner.local, row) for owner in self._owners if owner.local for row in owner.local.workable()]
        if not ready:
            return False
        owner, worker, row = self.ground.rng.choice(ready)
        report = execute(self.ground, worker, row)
        self.ground.note(f"{worker.name} ends {row.task_id}")
        if not owner.deliver(report):
            self._remote.send(report)
        return True

    def _forge(self) -> bool:
        if not self.ground.strikes(Fault.FORGERY):
            return False
        message = forge(self.ground)
        self.ground.store.add_mail(message)
        self.ground.note(f"someone forges {type(message).__name__}({message.node_id}, {message.task_id})")
        return True

    def _cancel(self) -> bool:
        if not self.ground.strikes(Fault.CANCEL):
            return False
        self.ground.store.add_mail(Cancel("someone", "no longer needed"))
        self.ground.note("someone cancels the job")
        return True

    def _pass_time(self) -> bool:
        """A little, or to the next timer, or far beyond it."""
        ground = self.ground
        if ground.strikes(Fault.CLOCK_JUMP):
            ground.wait(ground.rng.choice((10, 40, 200, 2_000)))
            ground.note("the clock jumps")
        elif ground.rng.random() < 0.3 and (next_timer := self._next_near_timer()) is not None:
            ground.wait(next_timer)
        else:
            ground.wait(ground.rng.random())
        return False

    def _next_near_timer(self) -> float | None:
        """Only such as a back-off: without faults, no task waits so long that it times out."""
        waits = [(at - self.ground.now).total_seconds() for owner in self._owners if (at := owner.next_timer())]
        return min((wait for wait in waits if 0 < wait < 6), default=None)

    # Calm weather: everyone does what there is to do, and time passes only when there is nothing.

    def _calm_steps(self) -> list[Step]:
        owners = self._owners
        return [
            self._take_over,
            lambda: owners[0].commit() or owners[1].commit(),
            lambda: owners[0].decide() or owners[1].decide(),
            self._remote.rescue,
            self._remote.watch,
            self._watch_locally,
            self._remote.arrive,
            self._work_locally,
            self._remote.work,
            self._remote.claim,
            self._close_mail,
            self._sleep,
        ]

    def _watch_locally(self) -> bool:
        locals_ = [owner.local for owner in self._owners if owner.local]
        return any(_stop_withdrawn(worker, self.ground.store) for worker in locals_)

    def _close_mail(self) -> bool:
        store = self.ground.store
        if not store.is_over or not store.mailbox:
            return False
        store.close_late_mail(self.ground.now)
        return True

    def _sleep(self) -> bool:
        """Until the next timer; when there is none, nothing will ever happen again."""
        if self.ground.store.is_over:
            return False
        timers = [at for owner in self._owners if (at := owner.next_timer()) is not None]
        if not timers:
            raise Violation(f"nothing will ever happen again; open are {self.watch.open_nodes()}")
        self.ground.now = max(self.ground.now, min(timers))
        return True


def _stop_withdrawn(worker: Worker, store: Store) -> bool:
    withdrawn = [task_id for task_id in worker.held if task_id not in store.running]
    for task_id in withdrawn:
        worker.drop(task_id)
    return bool(withdrawn)
