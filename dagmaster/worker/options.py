"""The options of a worker."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    queues: tuple[str, ...]
    concurrency: int = 16
    poll_interval_seconds: float = 1.0
    heartbeat_interval_seconds: float = 30.0
    lease_seconds: float = 55.0
    progress_interval_seconds: float = 1.0
    shutdown_grace_seconds: float = 30.0
    stop_within_seconds: float = 2.0
    max_output_bytes: int = 16 * 1024 * 1024
    max_log_bytes: int = 10 * 1024 * 1024
    handler_specs: tuple[str, ...] = ()
