"""The pages in the sidebar, by role."""

from dataclasses import dataclass
from typing import Final

from dagmaster.model.access import Role
from dagmaster.web.access import READING, READING_OWN, SUBMITTING, Caller


@dataclass(frozen=True, slots=True)
class Place:
    """`keys` are the keyboard shortcut, pressed one after the other.

    Reviewers of one platform see only places that are `by_platform`, which limit them to it.
    """

    name: str
    path: str
    icon: str
    roles: frozenset[Role]
    keys: str = ""
    by_platform: bool = False


PLACES: Final = (
    Place("Dashboard", "/ui/", "home", READING, "g h"),
    Place("Jobs", "/ui/jobs", "layers", READING_OWN, "g j"),
    Place("Workflows", "/ui/workflows", "git-branch", READING, "g w"),
    Place("Submit", "/ui/submit", "play-circle", SUBMITTING, "g s"),
    Place("Schedules", "/ui/schedules", "calendar", READING, "g c"),
    Place("Approvals", "/ui/approvals", "check-square", READING, "g a"),
    Place("Review", "/ui/review", "eye", READING, "g v", by_platform=True),
    Place("Assets", "/ui/assets", "map", READING, "g m", by_platform=True),
    Place("Requests", "/ui/requests", "file-text", READING, "g r", by_platform=True),
    Place("Tables", "/ui/tables", "database", READING, "g b"),
    Place("Nodes", "/ui/nodes", "share-2", READING, "g n"),
    Place("Tasks", "/ui/tasks", "cpu", READING, "g t"),
    Place("Queues", "/ui/queues", "inbox", READING, "g q"),
    Place("Handlers", "/ui/handlers", "tool", READING, "g e"),
    Place("Workers", "/ui/workers", "server", READING, "g o"),
    Place("Health", "/ui/health", "activity", READING, "g d"),
    Place("Keys", "/ui/keys", "key", frozenset({Role.ADMIN}), "g k"),
)


def places_for(caller: Caller) -> list[Place]:
    return [
        place
        for place in PLACES
        if caller.role in place.roles and (place.by_platform or not caller.is_platform_reviewer)
    ]


def current_place(path: str) -> Place | None:
    """The place of the path, or of its parent."""
    matches = [
        place for place in PLACES if path == place.path or (place.path != "/ui/" and path.startswith(place.path + "/"))
    ]
    return max(matches, key=lambda place: len(place.path), default=None)
