"""The fleet's metrics for Prometheus, the same from every process."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dagmaster.store.connect import Connection
from dagmaster.store.measures import fleet_measures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "dagmaster_"

COUNTERS = {
    "jobs_created": "Jobs that started, or were cancelled before they did.",
    "jobs_completed": "Jobs that completed.",
    "jobs_failed": "Jobs that failed.",
    "jobs_cancelled": "Jobs that were cancelled.",
    "tasks_created": "Dispatched tasks, counting each attempt.",
    "tasks_completed": "Attempts that completed.",
    "tasks_failed": "Attempts that failed.",
}
STATS = {
    "cycles": "Cycles of the loop.",
    "results_processed": "Processed reports of workers.",
    "errors": "Failures to process a job.",
}
# By name: the histogram in the stats of an instance, and the description. The last one is an alias.
HISTOGRAMS = {
    "job_duration_seconds": ("job_duration_seconds", "From a job's start to its end."),
    "task_duration_seconds": ("task_duration_seconds", "How long attempts ran."),
    "task_claim_latency_seconds": ("task_claim_latency_seconds", "From a task's dispatch until a worker claims it."),
    "orchestrator_cycle_seconds": ("cycle_seconds", "Duration of cycles that had work to do."),
    "worker_task_execution_time": ("task_duration_seconds", "How long attempts ran."),
}


async def render(conn: Connection, fresh: Mapping[str, Mapping[str, Any]] | None = None) -> bytes:
    """The text format of Prometheus. `fresh` are current stats of instances, newer than their last heartbeat."""
    measures = await fleet_measures(conn)
    for instance in measures["orchestrators"]:
        instance["stats"] = (fresh or {}).get(instance["orchestrator_id"], instance["stats"])
    registry = CollectorRegistry()
    registry.register(Fleet(measures))
    return generate_latest(registry)


class Fleet(Collector):
    """The state of the fleet in the database, as metrics. Counters are per instance and start with it."""

    def __init__(self, measures: Mapping[str, Any]) -> None:
        self._measures = measures
        self._orchestrators: list[dict[str, Any]] = measures["orchestrators"]

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._histograms()
        yield from self._loops()
        yield from self._instances()
        yield from self._workers()
        yield from self._queues()
        yield from self._schedules()
        yield from self._database()

    def _counters(self) -> Iterator[Metric]:
        for name, text in COUNTERS.items():
            yield _counter(name, text, self._stats("counters", name))
        for name, text in STATS.items():
            yield _counter(f"orchestrator_{name}", text, self._stats(name))

    def _stats(self, *path: str) -> Iterator[tuple[str, Any]]:
        """Empty for an instance without a heartbeat yet, or of another version."""
        for instance in self._orchestrators:
            value: Any = instance["stats"]
            for part in path:
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                yield instance["orchestrator_id"], value

    def _histograms(self) -> Iterator[Metric]:
        for name, (source, text) in HISTOGRAMS.items():
            yield _histogram(name, text, self._stats("histograms", source))

    def _loops(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            PREFIX + "orchestrator_phase_seconds", "Time spent in each phase of the loop.", labels=["instance", "phase"]
        )
        for instance, phases in self._stats("phases"):
            for phase, spent in phases.items():
                family.add_metric([instance, phase], spent["seconds"])
        yield family

    def _instances(self) -> Iterator[Metric]:
        running = [instance for instance in self._orchestrators if instance["status"] == "running"]
        yield GaugeMetricFamily(PREFIX + "orchestrators_active", "Running orchestrators.", value=len(running))
        ages = [(instance["orchestrator_id"], instance["heartbeat_age_seconds"]) for instance in running]
        text = "Time since an orchestrator's last heartbeat."
        yield _gauge("orchestrator_heartbeat_age_seconds", text, "instance", ages)
        owned = [(instance["orchestrator_id"], instance["jobs_owned"]) for instance in running]
        yield _gauge("orchestrator_jobs_owned", "Live jobs that an orchestrator owns.", "instance", owned)

    def _workers(self) -> Iterator[Metric]:
        active = self._measures["workers"]
        yield GaugeMetricFamily(PREFIX + "workers_active", "Running workers.", value=len(active))
        ages = [(worker["worker_id"], worker["heartbeat_age_seconds"]) for worker in active]
        yield _gauge("worker_heartbeat_age_seconds", "Time since a worker's last heartbeat.", "worker", ages)
        slots = [(worker["worker_id"], worker["concurrency"]) for worker in active]
        yield _gauge("worker_slots", "Slots of a worker.", "worker", slots)
        stuck = [(worker["worker_id"], len(worker["stuck_tasks"])) for worker in active]
        yield _gauge("worker_stuck_slots", "Slots occupied by handlers that did not stop when asked.", "worker", stuck)

    def _queues(self) -> Iterator[Metric]:
        queues = self._measures["queues"]
        depths = [(queue["queue"], queue["depth"]) for queue in queues]
        yield _gauge("task_queue_depth", "Tasks that wait for a worker.", "queue", depths)
        running = [(queue["queue"], queue["running"]) for queue in queues]
        yield _gauge("tasks_running", "Tasks that a worker holds.", "queue", running)

    def _schedules(self) -> Iterator[Metric]:
        counts = self._measures["schedules"]
        texts = {
            "active": "Schedules that are not paused.",
            "paused": "Schedules that are paused.",
            "late": "Schedules that are more than a minute late.",
        }
        for name, text in texts.items():
            yield GaugeMetricFamily(f"{PREFIX}schedules_{name}", text, value=counts[name])

    def _database(self) -> Iterator[Metric]:
        callbacks, connections = self._measures["callbacks"], self._measures["connections"]
        for name, text in (
            ("waiting", "Callbacks still to be delivered."),
            ("failed", "Abandoned callbacks among the latest 10,000."),
        ):
            yield GaugeMetricFamily(f"{PREFIX}callbacks_{name}", text, value=callbacks[name])
        yield GaugeMetricFamily(
            PREFIX + "database_connections_max", "Connections that the server allows.", value=connections["most"]
        )
        used = connections["by_application"].items()
        yield _gauge("database_connections", "Connections to the server.", "application", used)


def _counter(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=["instance"])
    for instance, value in values:
        family.add_metric([instance], value)
    return family


def _gauge(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for value_of, value in values:
        family.add_metric([value_of], value)
    return family


def _histogram(name: str, text: str, values: Iterable[tuple[str, Mapping[str, Any]]]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=["instance"])
    for instance, histogram in values:
        bounds = [*(str(float(bound)) for bound in histogram["bounds"]), "+Inf"]
        family.add_metric([instance], list(zip(bounds, accumulate(histogram["counts"]), strict=True)), histogram["sum"])
    return family
