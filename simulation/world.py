"""A world in which a job runs: owners, workers, messages and a clock, advanced one small step at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import Cancel, ManualRetry, Pause, Resume
from dagmaster.model.states import JobStatus, NodeStatus
from simulation.cases import Case
from simulation.graphs import QUEUE
from simulation.ground import JOB_ID, START, Fault, Ground, Violation
from simulation.invariants import Watch, check_rest, open_nodes
from simulation.owners import Owner
from simulation.store import NodeRow, Store
from simulation.wait_nodes import Outside
from simulation.workers import Remote, add_slice, endable, execute, forge

MAX_CALM_STEPS = 3_000


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults that may occur, and for how many steps."""

    faults: frozenset[Fault]
    steps: int
    steps_after_end: int
    rules: Rules
    local_workers: bool


Step = Callable[[], bool]


class World:
    """Each step does one thing to one actor, or nothing; the invariants are checked after each."""

    def __init__(self, case: Case, weather: Weather, rng: Random) -> None:
        store = Store(JOB_ID, case.blueprint.graph, case.inputs, "owner-1", START, weather.rules.inline_bytes)
        self.ground = Ground(case, store, weather.rules, rng, weather.faults)
        self.weather = weather
        self.watch = Watch(self.ground)
        self.remote = Remote(self.ground, 2)
        self.outside = Outside(self.ground)
        self.owners: list[Owner] = []
        self._appointed = 0
        for _ in range(2):
            self._appoint()
        steps: list[tuple[int, Step]] = [
            (10, self._decide),
            (10, self._commit),
            (7, self.remote.claim),
            (7, self.remote.work),
            (4, self._work_locally),
            (6, self.remote.add),
            (4, self._add_locally),
            (8, self.remote.arrive),
            (2, self.outside.signal),
            (3, self.outside.decide),
            (3, self.outside.end_child),
            (1, self.remote.watch),
            (2, self.remote.lose_one),
            (2, self.remote.rescue),
            (2, self._die),
            (2, self._take_over),
            (2, self._forge),
            (2, self._cancel),
            (2, self._pause),
            (3, self._unpause),
            (4, self._retry_by_hand),
            (2, self._fill_queue),
            (3, self.drain_queue),
            (6, self._pass_time),
        ]
        self._steps = [step for _, step in steps]
        # Each world has its own pace: slow owners here, slow messages there.
        self._weights = [weight * rng.choice((0.3, 1, 1, 2)) for weight, _ in steps]

    def run(self) -> None:
        """Faults first; then it is calm, and the job must end. A failed job is then retried, first in part."""
        self.storm(self.weather.steps)
        for _ in self.calm():
            pass
        if self._retry_some():
            for _ in self.calm():
                pass

    def storm(self, steps: int) -> None:
        """Run the first steps with faults, or all of them."""
        after = self.weather.steps_after_end
        for step in self.ground.rng.choices(self._steps, self._weights, k=self.weather.steps)[:steps]:
            self._move(step)
            after -= self.ground.store.is_over
            if after < 0:
                break

    def calm(self) -> Iterator[None]:
        """Step by step, until nothing happens any more."""
        self.ground.is_calm = True
        steps = self._calm_steps()
        for _ in range(MAX_CALM_STEPS):
            if not any(self._move(step) for step in steps):
                check_rest(self.ground)
                return
            yield
        raise Violation(f"the job never ended; open are {open_nodes(self.ground.store)}")

    def _move(self, step: Step) -> bool:
        self.ground.step += 1
        try:
            moved = step()
            if moved:
                self.watch.check()
        except Violation:
            raise
        except Exception as error:  # Any exception of the engine is a finding.
            raise Violation(f"{type(error).__name__}: {error}") from error
        return moved

    # Owners.

    def _appoint(self) -> None:
        self._appointed += 1
        self.owners.append(Owner(self.ground, f"owner-{self._appointed}", has_worker=self.weather.local_workers))

    def _decide(self) -> bool:
        return self.ground.rng.choice(self.owners).decide()

    def _commit(self) -> bool:
        return self.ground.rng.choice(self.owners).commit()

    def _die(self) -> bool:
        """The process of an owner dies at any point, with the worker in it."""
        if not self.ground.strikes(Fault.OWNER_DEATH):
            return False
        dead = self.owners.pop(self.ground.rng.randrange(len(self.owners)))
        self.ground.note(f"{dead.name} dies{' with an unwritten change set' if dead.decided else ''}")
        if dead.local is not None:
            self.ground.store.active_workers.discard(dead.local.name)
        self._appoint()
        return True

    def _take_over(self) -> bool:
        """An orphan is adopted; sometimes a live owner loses the job too, without knowing it."""
        store = self.ground.store
        is_orphan = all(owner.name != store.job.owner_id for owner in self.owners)
        has_ended = store.is_over and store.job.owner_id is None  # An owned one is being reopened.
        if has_ended or not (is_orphan or self.ground.strikes(Fault.TAKE_OVER)):
            return False
        heir = self.ground.rng.choice(self.owners)
        heir.forget()  # Adopted again: its memory may be of an older epoch.
        store.take_over(heir.name)
        self.ground.note(f"{heir.name} takes over")
        return True

    # Everyone else.

    def _work_locally(self) -> bool:
        pairs = [(owner, owner.local) for owner in self.owners if owner.local]
        ready = [(owner, worker, row) for owner, worker in pairs for row in endable(self.ground, worker)]
        if not ready:
            return False
        owner, worker, row = self.ground.rng.choice(ready)
        report = execute(self.ground, worker, row)
        self.ground.note(f"{worker.name} ends {row.task_id}")
        if not owner.deliver(report):
            self.remote.flights.append(report)
        return True

    def _add_locally(self) -> bool:
        return add_slice(self.ground, [owner.local for owner in self.owners if owner.local])

    def _forge(self) -> bool:
        if not self.ground.strikes(Fault.FORGERY):
            return False
        message = forge(self.ground)
        self.ground.store.add_mail(message)
        self.ground.note(f"forged {type(message).__name__}({message.node_id}, {message.task_id})")
        return True

    def _cancel(self) -> bool:
        return self.ground.strikes(Fault.CANCEL) and self._send(Cancel("someone", "no longer needed"))

    def _pause(self) -> bool:
        is_over = self.ground.store.is_over
        return not is_over and self.ground.strikes(Fault.PAUSE) and self._send(Pause("someone"))

    def _send(self, message: Cancel | Pause | Resume) -> bool:
        self.ground.store.add_mail(message)
        self.ground.note(f"{type(message).__name__} is sent")
        return True

    def _unpause(self) -> bool:
        store = self.ground.store
        is_resuming = any(isinstance(message, Resume) for message in store.mailbox.values())
        if store.is_over or is_resuming or store.job.paused_at is None:
            return False
        return self._send(Resume("someone"))

    def _retry_by_hand(self) -> bool:
        """Retry the failed nodes, or a node between two attempts."""
        store, rng = self.ground.store, self.ground.rng
        rows = store.nodes.values()
        between = [row.node_id for row in rows if row.status is NodeStatus.READY and row.not_before is not None]
        if not store.is_over and between and self.ground.strikes(Fault.BY_HAND):
            store.add_mail(ManualRetry(rng.choice(between), "someone"))
        elif _has_failed(store) and self.ground.strikes(Fault.BY_HAND):
            store.reopen(rng.choice(self.owners).name, ManualRetry(None, "someone"))
        else:
            return False
        self.ground.note("manual retry")
        return True

    def _retry_some(self) -> bool:
        """Limited to some nodes of a failed job, as the service does if no task has added nodes."""
        ground = self.ground
        names = sorted(row.node_id for row in ground.store.nodes.values() if _is_unfinished(row))
        if not _has_failed(ground.store) or ground.case.added or len(names) < 2:
            return False
        selected = frozenset(ground.rng.sample(names, ground.rng.randint(1, len(names) - 1)))
        ground.store.reopen(self.owners[0].name, ManualRetry(None, "someone", selected))
        ground.note(f"manual retry of {', '.join(sorted(selected))}")
        return True

    def _fill_queue(self) -> bool:
        if QUEUE in self.ground.closed_queues or not self.ground.strikes(Fault.FULL_QUEUE):
            return False
        self.ground.closed_queues.add(QUEUE)
        self.ground.closed_at = self.ground.step
        self.ground.note("the queue is full")
        return True

    def drain_queue(self) -> bool:
        if QUEUE not in self.ground.closed_queues:
            return False
        self.ground.closed_queues.discard(QUEUE)
        self.ground.opened_at = self.ground.step
        for owner in self.owners:
            owner.open_queue(QUEUE)
        self.ground.note("the queue has room again")
        return True

    def _pass_time(self) -> bool:
        """Advance the clock a little, or to the next timer, or far beyond it."""
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
        """Only near timers such as back-offs: without faults, no task waits until it times out."""
        waits = [(at - self.ground.now).total_seconds() for owner in self.owners if (at := owner.next_timer())]
        return min((wait for wait in waits if 0 < wait < 6), default=None)

    # Calm weather: every actor does its work, and time passes only if there is none.

    def _calm_steps(self) -> list[Step]:
        owners = self.owners
        return [
            self._take_over,
            self.drain_queue,
            self._unpause,
            lambda: owners[0].commit() or owners[1].commit(),
            lambda: owners[0].decide() or owners[1].decide(),
            self._check_deadline,
            self.remote.rescue,
            self.remote.watch,
            self._watch_locally,
            self.remote.add,
            self._add_locally,
            self.remote.arrive,
            self._work_locally,
            self.remote.work,
            self.remote.claim,
            self.outside.signal,
            self.outside.decide,
            self.outside.end_child,
            self._close_mail,
            self._sleep,
        ]

    def _check_deadline(self) -> bool:
        """No owner has anything to decide: everything due has been done."""
        self.watch.check_deadline_is_kept()
        return False

    def _watch_locally(self) -> bool:
        running = self.ground.store.running
        return any(owner.local.drop_revoked(running) for owner in self.owners if owner.local)

    def _close_mail(self) -> bool:
        store = self.ground.store
        if not store.is_over or not store.mailbox or store.job.owner_id is not None:
            return False
        store.close_late_mail(self.ground.now)
        return True

    def _sleep(self) -> bool:
        """Until the next timer; without one, nothing will ever happen again."""
        if self.ground.store.is_over:
            return False
        timers = [at for owner in self.owners if (at := owner.next_timer()) is not None]
        if not timers:
            raise Violation(f"nothing will ever happen again; open are {open_nodes(self.ground.store)}")
        self.ground.now = max(self.ground.now, min(timers))
        return True


def _is_unfinished(row: NodeRow) -> bool:
    return row.status is NodeStatus.FAILED or (row.status is NodeStatus.SKIPPED and row.parent is not None)


def _has_failed(store: Store) -> bool:
    return store.job.status is JobStatus.FAILED and store.job.owner_id is None
