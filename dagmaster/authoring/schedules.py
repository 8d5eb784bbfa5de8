"""Read the `schedule` of a workflow file."""

from typing import Final

from pydantic import ValidationError

from dagmaster.authoring.fields import Notes, reason_of
from dagmaster.authoring.positions import Located
from dagmaster.model.schedule import Schedule

_KEYS: Final = ("cron", "every", "timezone", "catchup", "inputs", "time_input")


def read_schedule(located: Located | None, notes: Notes) -> Schedule | None:
    """A plain string is a cron expression. None if there is no schedule, or no usable one."""
    if located is None or located.value is None:
        return None
    notes.place(("schedule",), located)
    if not isinstance(located.value, dict | str):
        notes.report(
            "'schedule' must be a cron expression in quotes, or a mapping with 'cron' or 'every'", located.mark
        )
        return None
    parts = {"cron": located}
    if isinstance(located.value, dict):
        parts = notes.read_fields(located, _KEYS, "'schedule'")
    values = {key: part.plain for key, part in parts.items() if part.value is not None}
    try:
        return Schedule.model_validate(values)
    except ValidationError as error:
        for fault in error.errors():
            key = str(fault["loc"][0]) if fault["loc"] else "every" if "every" in values else ""
            position = parts.get(key, located)
            name = f"'{key}' of the schedule" if fault["loc"] else "the schedule"
            notes.report(f"{name}: {reason_of(fault['msg'])}", position.mark)
        return None
