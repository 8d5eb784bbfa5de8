"""The limits of the doctor's checks, from the settings."""

from dagmaster.settings import Settings
from dagmaster.store.doctor import Limits


def doctor_limits(settings: Settings, days: float) -> Limits:
    """Retention removes events; their absence is not a problem."""
    return Limits(
        orphan_seconds=settings.orphan_threshold_seconds,
        worker_lost_seconds=settings.worker_lost_after_seconds,
        days=min(days, settings.retention_days or days),
    )
