"""Fold the `child_node` templates into their fan-outs: a template does not run on its own."""

from collections.abc import Callable
from typing import Any, Final

from dagmaster.authoring.dialects import UNREAD, Draft
from dagmaster.authoring.fields import Notes
from dagmaster.model.problems import Path, did_you_mean

_TASK_FIELDS: Final = ("handler", "queue", "params", "timeout_seconds", "retry")

Owners = dict[str, list[str]]


def fold_templates(drafts: dict[str, Draft], notes: Notes) -> dict[str, Draft]:
    """The drafts without the templates. Nodes that depended on a template now depend on its fan-out."""
    owners = _find_owners(drafts, notes)
    for template_id, fan_outs in owners.items():
        for fan_out in fan_outs:
            _fold(drafts[template_id], drafts[fan_out], notes)
    remaining = {node_id: draft for node_id, draft in drafts.items() if node_id not in owners}
    for draft in remaining.values():
        _relink(draft, owners, notes)
    return remaining


def rename_links(draft: Draft, rename: Callable[[str], str]) -> None:
    """Rename the nodes that a draft refers to."""
    raw = draft.raw
    for names in _link_lists(raw):
        names[:] = [rename(name) for name in names]
    if raw.get("source_node"):
        raw["source_node"] = rename(raw["source_node"])


def _link_lists(raw: dict[str, Any]) -> list[list[str]]:
    branches = [branch.get("next", []) for branch in raw.get("branches", [])]
    return [raw.get("next", []), *(raw.get("depends_on") or {}).values(), *branches]


def _find_owners(drafts: dict[str, Draft], notes: Notes) -> Owners:
    owners: Owners = {}
    for node_id, draft in drafts.items():
        if draft.child_node is None:
            continue
        template = drafts.get(draft.child_node)
        if template is None or template.type != "task":
            fault = "is not a task" if template else f"is unknown{did_you_mean(draft.child_node, drafts)}"
            message = f"the child_node {draft.child_node!r} of the fan_out {node_id!r} {fault}"
            notes.report_at(("nodes", node_id, "child_node"), message)
            draft.raw["task"] = {"handler": UNREAD, "queue": UNREAD}
        else:
            owners.setdefault(draft.child_node, []).append(node_id)
    return owners


def _fold(template: Draft, fan_out: Draft, notes: Notes) -> None:
    own = fan_out.raw["task"]
    task_fields = {key: template.raw[key] for key in _TASK_FIELDS if template.raw.get(key) is not None}
    fan_out.raw["task"] = {**own, **task_fields, "queue": own.get("queue") or task_fields.get("queue")}
    notes.move(("nodes", template.node_id), ("nodes", fan_out.node_id, "task"))
    targets = fan_out.raw.setdefault("next", [])  # An unreadable fan-out has none.
    for number, target in enumerate(template.raw.get("next", [])):
        if target not in targets and target != fan_out.node_id:
            moved: Path = ("nodes", fan_out.node_id, "next", len(targets))
            notes.move(("nodes", template.node_id, "next", number), moved)
            targets.append(target)


def _relink(draft: Draft, owners: Owners, notes: Notes) -> None:
    raw = draft.raw
    for names in (raw.get("depends_on") or {}).values():
        names[:] = [owner for name in names for owner in owners.get(name, [name]) if owner != draft.node_id]
    for names in _link_lists(raw):
        for name in [name for name in names if name in owners]:
            names.remove(name)
            if draft.node_id not in owners[name]:
                message = f"node {draft.node_id!r} cannot lead to {name!r}, the child_node of {owners[name][0]!r}"
                notes.report(message, draft.mark)
    _relink_source(draft, owners, notes)


def _relink_source(draft: Draft, owners: Owners, notes: Notes) -> None:
    fan_outs = owners.get(draft.raw.get("source_node") or "", [])
    if len(fan_outs) > 1:
        message = f"several fan_outs use {draft.raw['source_node']!r}: name one of {', '.join(fan_outs)}"
        notes.report_at(("nodes", draft.node_id, "source_node"), message)
    if fan_outs:
        draft.raw["source_node"] = fan_outs[0]
