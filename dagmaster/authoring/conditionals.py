"""Read the three notations of a conditional into ordered branches."""

import re
from typing import Any, Final

from dagmaster.authoring.fields import Fields, Notes, is_missing
from dagmaster.authoring.positions import Located, Mark
from dagmaster.model.problems import Path

# Keys are read as written, and YAML has many words for true.
_TRUTHS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BRANCH_KEYS: Final = ("name", "condition", "next", "default")
_HALF_COMPARISON: Final = re.compile(r"\s*(==|!=|[<>]|(in|not_in|not\s+in|contains|starts_with|ends_with)\b|is_)")

# Placeholders for unreadable values, so that each mistake is reported once.
UNREAD_CONDITION: Final = "true"
UNREAD_SUBJECT: Final = "{{ inputs }}"


def read_conditional(node_id: str, mark: Mark, fields: Fields, notes: Notes) -> dict[str, Any]:
    """The fields of a ConditionalNode besides the common ones."""
    branches = fields.get("branches")
    if branches is not None and isinstance(branches.value, list):
        return _Ordered(node_id, fields, notes).read(branches.value)
    return {"branches": _read_two_way(node_id, mark, fields, notes)}


def _read_two_way(node_id: str, mark: Mark, fields: Fields, notes: Notes) -> list[dict[str, Any]]:
    """`condition` with `on_true` and `on_false`, or with `branches: {true: ..., false: ...}`."""
    path: Path = ("nodes", node_id, "branches")
    targets = _read_targets(node_id, fields, notes)
    return [
        {
            "name": "true",
            "when": _read_condition(node_id, mark, fields, notes),
            "next": notes.read_names(targets.get(True), (*path, 0, "next"), f"a branch of node {node_id!r}"),
        },
        {
            "name": "false",
            "next": notes.read_names(targets.get(False), (*path, 1, "next"), f"a branch of node {node_id!r}"),
        },
    ]


def _read_condition(node_id: str, mark: Mark, fields: Fields, notes: Notes) -> str:
    condition = fields.get("condition")
    if is_missing(condition):
        notes.report(f"the conditional {node_id!r} needs a 'condition'", mark)
    elif condition is not None:
        notes.place(("nodes", node_id, "branches", 0, "when"), condition)
    return _condition_text(condition, f"the condition of node {node_id!r}", notes)


def _condition_text(located: Located | None, label: str, notes: Notes) -> str:
    if located is not None and isinstance(located.value, bool):
        return "true" if located.value else "false"  # however YAML spells it
    return notes.read_text(located, label) or UNREAD_CONDITION


def _read_targets(node_id: str, fields: Fields, notes: Notes) -> dict[bool, Located]:
    targets = {truth: fields[key] for truth, key in ((True, "on_true"), (False, "on_false")) if key in fields}
    branches = fields.get("branches")
    if branches is None:
        return targets
    if targets:
        notes.report(
            f"node {node_id!r} has 'on_true' or 'on_false' as well as 'branches'; use only one notation", branches.mark
        )
    if not isinstance(branches.value, dict):
        notes.has_lost_links = True
        if not branches.is_broken:
            notes.report(f"the branches of node {node_id!r} must be a list, or true and false", branches.mark)
        return targets
    for key, entry in branches.value.items():
        if (truth := _TRUTHS.get(key.lower())) is None:
            notes.has_lost_links = True
            notes.report(
                f"a branch of node {node_id!r} must be true or false, not {key!r}", entry.key_mark or entry.mark
            )
        else:
            targets[truth] = entry
    return targets


class _Ordered:
    """`condition_field` with a list of branches; the first match is taken."""

    def __init__(self, node_id: str, fields: Fields, notes: Notes) -> None:
        self._node_id = node_id
        self._fields = fields
        self._notes = notes
        self._path: Path = ("nodes", node_id, "branches")

    def read(self, items: list[Located]) -> dict[str, Any]:
        branches = [self._branch(number, item) for number, item in enumerate(items)]
        if "default" in self._fields:
            branches.append(self._default(len(branches), self._fields["default"]))
        return {"subject": self._subject(branches), "branches": branches}

    def _branch(self, number: int, item: Located) -> dict[str, Any]:
        label = f"branch {number + 1} of node {self._node_id!r}"
        fields = self._notes.read_fields(item, _BRANCH_KEYS, label)
        self._notes.place_mark((*self._path, number), item.mark)
        is_default = self._notes.read_flag(fields.get("default"), f"'default' in {label}", default=False)
        name = self._notes.read_text(fields.get("name"), f"the name of {label}")
        return {
            "name": name or ("default" if is_default else f"branch_{number + 1}"),
            "when": self._when(number, item, fields, label, is_default),
            "next": self._notes.read_names(fields.get("next"), (*self._path, number, "next"), label),
        }

    def _when(self, number: int, item: Located, fields: Fields, label: str, is_default: bool) -> str | None:
        condition = fields.get("condition")
        if is_default:
            if condition is not None:
                self._notes.report(f"{label} is the default and cannot have a condition", condition.mark)
            return None
        if is_missing(condition) and isinstance(item.value, dict):
            self._notes.report(f"{label} needs a 'condition' or 'default: true'", item.mark)
        elif condition is not None:
            self._notes.place((*self._path, number, "when"), condition)
        return _condition_text(condition, f"the condition of {label}", self._notes)

    def _default(self, number: int, located: Located) -> dict[str, Any]:
        label = f"the default of node {self._node_id!r}"
        self._notes.place_mark((*self._path, number), located.mark)
        if isinstance(located.value, bool):
            self._notes.report(f"{label} must name a node; 'default: true' belongs in a branch", located.mark)
            return {"name": "default"}
        target: Located | None = located
        if isinstance(located.value, dict):
            target = self._notes.read_fields(located, ("next",), label).get("next")
        return {"name": "default", "next": self._notes.read_names(target, (*self._path, number, "next"), label)}

    def _subject(self, branches: list[dict[str, Any]]) -> str | None:
        field = self._fields.get("condition_field") or self._fields.get("condition")
        if field is not None and not is_missing(field):
            self._notes.place(("nodes", self._node_id, "subject"), field)
            return self._notes.read_text(field, f"the condition_field of node {self._node_id!r}") or UNREAD_SUBJECT
        if any(_HALF_COMPARISON.match(branch.get("when") or "") for branch in branches):
            message = f"node {self._node_id!r} needs a 'condition_field' that its branches compare"
            self._notes.report(message, self._fields["branches"].key_mark or self._fields["branches"].mark)
            return UNREAD_SUBJECT
        return None
