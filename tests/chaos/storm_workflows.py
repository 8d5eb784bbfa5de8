"""The workflows that only a storm needs, each with the expected outcome of its jobs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shapes import CHAIN, DOOMED, FAN, FLAKY, FORK, NARROW_FAN, Inputs, Outcome, Shape


def _ended(status: str, completed: str, skipped: str = "", *, failed: str = "", **results: Any) -> Outcome:
    nodes = dict.fromkeys(completed.split(), "completed") | dict.fromkeys(skipped.split(), "skipped")
    return Outcome(status, nodes | dict.fromkeys(failed.split(), "failed"), results)


def _done_by(handler: str, shape: Shape, workflow_id: str) -> Shape:
    text = shape.text.replace(f"workflow_id: {shape.workflow_id}\n", f"workflow_id: {workflow_id}\n")
    return replace(shape, workflow_id=workflow_id, text=text.replace("ledger.work", handler))


PATIENT_CHAIN = _done_by("ledger.wait", CHAIN, "patient_chain")
PATIENT_FAN = _done_by("ledger.wait", NARROW_FAN, "patient_fan")
ISOLATED_CHAIN = _done_by("ledger.isolated_work", CHAIN, "isolated_chain")
RESUMABLE_CHAIN = _done_by("ledger.resumable_work", CHAIN, "resumable_chain")


def _endless(inputs: Inputs) -> Outcome:
    return _ended("cancelled", "START begin", "never END", failed="go_on", begin={"value": 1})


ENDLESS = Shape(
    "endless",
    """
workflow_id: endless
nodes:
  START: {type: start, next: begin}
  begin: {handler: ledger.wait, queue: work, params: {value: 1}, retry: {max_attempts: 50}, next: go_on}
  go_on:
    handler: ledger.wait
    queue: work
    params: {seconds: 80000}
    timeout_seconds: 86400
    retry: {max_attempts: 50}
    next: never
  never: {handler: ledger.wait, queue: work, retry: {max_attempts: 50}, next: END}
  END: {type: end}
""",
    _endless,
)


def _race(inputs: Inputs) -> Outcome:
    return _ended("completed", "START one other answer END", answer={"value": inputs["n"]}, one={"value": 1})


RACE = Shape(
    "race",
    """
workflow_id: race
inputs:
  n: {type: integer}
  seconds: {type: number}
nodes:
  START: {type: start, next: [one, other]}
  one:
    handler: ledger.work
    queue: work
    params: {value: 1, seconds: "{{ inputs.seconds }}"}
    retry: {max_attempts: 50}
  other: {handler: ledger.wait, queue: work, params: {seconds: 0.3}, retry: {max_attempts: 50}}
  answer:
    handler: ledger.work
    queue: work
    depends_on: {any_of: [one, other]}
    params: {value: "{{ inputs.n }}"}
    retry: {max_attempts: 50}
    next: END
  END: {type: end}
""",
    _race,
)


def _optional(inputs: Inputs) -> Outcome:
    done, left = ("check", "") if inputs["thorough"] else ("", "check")
    status = "completed" if inputs["thorough"] else "skipped"
    return _ended("completed", f"START do should_check finish END {done}", left, finish={"value": status})


OPTIONAL = Shape(
    "optional",
    """
workflow_id: optional
inputs:
  thorough: {type: boolean}
nodes:
  START: {type: start, next: do}
  do: {handler: ledger.wait, queue: work, params: {seconds: 0.2}, retry: {max_attempts: 50}, next: should_check}
  should_check:
    type: conditional
    condition: "{{ inputs.thorough }}"
    on_true: check
    on_false: finish
  check: {handler: ledger.work, queue: work, params: {seconds: 0.2}, retry: {max_attempts: 50}, next: finish}
  finish:
    handler: ledger.work
    queue: work
    params: {value: "{{ nodes.check.status }}"}
    retry: {max_attempts: 50}
    next: END
  END: {type: end}
""",
    _optional,
)


def _nested(inputs: Inputs) -> Outcome:
    """Either one of three colours, or the items of a list."""
    items, kind = inputs["items"], inputs["kind"]
    colours = {"red", "blue", "other"}
    if kind == "many":
        squares = [{"value": item * item} for item in items]
        children = " ".join(f"spread__{index}" for index in range(len(items)))
        gathered = {"results": squares, "count": len(items), "failed": 0}
        skipped = " ".join(["by_kind", *colours])
        return _ended("completed", f"START is_many spread gather join END {children}", skipped, gather=gathered)
    taken = kind if kind in colours else "other"
    skipped = " ".join(["spread", "gather", *(colours - {taken})])
    results: dict[str, Any] = {taken: {"value": kind}}
    return _ended("completed", f"START is_many by_kind {taken} join END", skipped, **results)


NESTED = Shape(
    "nested",
    """
workflow_id: nested
inputs:
  items: {type: array}
  kind: {type: string}
nodes:
  START: {type: start, next: is_many}
  is_many:
    type: conditional
    condition: "{{ inputs.kind == 'many' }}"
    on_true: spread
    on_false: by_kind
  by_kind:
    type: conditional
    condition_field: "{{ inputs.kind }}"
    branches:
      - {name: warm, condition: "== red", next: red}
      - {name: cold, condition: "== blue", next: blue}
      - {default: true, next: other}
  red:
    handler: ledger.work
    queue: work
    params: {value: "{{ inputs.kind }}"}
    retry: {max_attempts: 50}
    next: join
  blue:
    handler: ledger.wait
    queue: work
    params: {value: "{{ inputs.kind }}"}
    retry: {max_attempts: 50}
    next: join
  other:
    handler: ledger.work
    queue: work
    params: {value: "{{ inputs.kind }}"}
    retry: {max_attempts: 50}
    next: join
  spread:
    type: fan_out
    source: "{{ inputs.items }}"
    task:
      handler: ledger.wait
      queue: work
      params: {value: "{{ item * item }}", seconds: 0.1}
      retry: {max_attempts: 50}
    next: gather
  gather: {type: fan_in, next: join}
  join: {handler: ledger.work, queue: work, retry: {max_attempts: 50}, next: END}
  END: {type: end}
""",
    _nested,
)

AT_LAST: dict[str, Any] = {"try": {"value": "at last"}}
AWAKE: dict[str, Any] = {"try": {"value": "awake"}}


def _stubborn(inputs: Inputs) -> Outcome:
    return _ended("completed", "START try END", **AT_LAST)


STUBBORN = Shape(
    "stubborn",
    """
workflow_id: stubborn
nodes:
  START: {type: start, next: try}
  try:
    handler: ledger.wait
    queue: work
    params: {value: at last, fail_attempts: 3}
    retry: {max_attempts: 50, backoff: exponential, initial_delay_seconds: 0.2, max_delay_seconds: 1, jitter: 0.5}
    next: END
  END: {type: end}
""",
    _stubborn,
)


def _hopeless(inputs: Inputs) -> Outcome:
    return _ended("failed", "START", "never END", failed="try")


HOPELESS = Shape(
    "hopeless",
    """
workflow_id: hopeless
nodes:
  START: {type: start, next: try}
  try: {handler: ledger.work, queue: work, params: {permanent: true}, retry: {max_attempts: 50}, next: never}
  never: {handler: ledger.work, queue: work, retry: {max_attempts: 50}, next: END}
  END: {type: end}
""",
    _hopeless,
)


def _sleepy(inputs: Inputs) -> Outcome:
    return _ended("completed", "START try END", **AWAKE)


SLEEPY = Shape(
    "sleepy",
    """
workflow_id: sleepy
nodes:
  START: {type: start, next: try}
  try:
    handler: ledger.wait
    queue: work
    params: {value: awake, first_seconds: 1000}
    timeout_seconds: 1
    retry: {max_attempts: 50, backoff: fixed, initial_delay_seconds: 0.1}
    next: END
  END: {type: end}
""",
    _sleepy,
)
TOO_SLEEPY = Shape(
    "too_sleepy",
    """
workflow_id: too_sleepy
nodes:
  START: {type: start, next: try}
  try:
    handler: ledger.wait
    queue: work
    params: {seconds: 1000}
    timeout_seconds: 1
    retry: {max_attempts: 1, backoff: fixed, initial_delay_seconds: 0.1}
    next: never
  never: {handler: ledger.work, queue: work, retry: {max_attempts: 1}, next: END}
  END: {type: end}
""",
    _hopeless,
    max_retries=1,
)


def _meeting(inputs: Inputs) -> Outcome:
    people = len(inputs["people"])
    children = " ".join(f"invite__{index}" for index in range(people))
    gathered = {"results": [{"value": people}] * people, "count": people, "failed": 0}
    return _ended("completed", f"START invite gather END {children}", gather=gathered)


MEETING = Shape(
    "meeting",
    """
workflow_id: meeting
inputs:
  people: {type: array}
  seconds: {type: number}
nodes:
  START: {type: start, next: invite}
  invite:
    type: fan_out
    source: "{{ inputs.people }}"
    task:
      handler: ledger.meet
      queue: work
      params: {people: "{{ inputs.people | length }}", seconds: "{{ inputs.seconds }}"}
      retry: {max_attempts: 50}
    next: gather
  gather: {type: fan_in, next: END}
  END: {type: end}
""",
    _meeting,
)

KINDS: Mapping[str, Shape] = {
    shape.workflow_id: shape
    for shape in (
        *(CHAIN, FAN, NARROW_FAN, FORK, FLAKY, DOOMED, PATIENT_CHAIN, PATIENT_FAN, ENDLESS, RACE, OPTIONAL, NESTED),
        *(STUBBORN, HOPELESS, SLEEPY, TOO_SLEEPY, MEETING, ISOLATED_CHAIN, RESUMABLE_CHAIN),
    )
}
