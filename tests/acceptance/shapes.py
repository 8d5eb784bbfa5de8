"""The workflows of the scenarios, each with the required outcome of its jobs, whichever process is killed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dagmaster.authoring.preparation import settle_defaults
from dagmaster.authoring.yaml import QueueRules, parse_workflow
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph

Inputs = Mapping[str, Any]
# More than any series of kills uses up: a job fails only if its definition requires it.
RETRIES = 50


@dataclass(frozen=True)
class Outcome:
    """`results` are the outputs of the nodes whose output matters."""

    status: str
    nodes: Mapping[str, str]
    results: Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    workflow_id: str
    text: str
    outcome: Callable[[Inputs], Outcome]
    max_retries: int = RETRIES

    @property
    def graph(self) -> Graph:
        return _compile(self.text)


@cache
def _compile(text: str) -> Graph:
    workflow = parse_workflow(text, queues=QueueRules(None, "work"))
    return compile_graph(settle_defaults(workflow, {}, timeout_seconds=120, max_retries=3))


def _completed(nodes: str, results: Mapping[str, Any], **others: str) -> Outcome:
    return Outcome("completed", {**dict.fromkeys(nodes.split(), "completed"), **others}, results)


def _chain(inputs: Inputs) -> Outcome:
    n = inputs["n"]
    return _completed("START a b c END", {"a": {"value": n}, "b": {"value": n + 1}, "c": {"value": n + 2}})


CHAIN = Shape(
    "chain",
    """
workflow_id: chain
inputs:
  n: {type: integer}
  seconds: {type: number, default: 0.02}
nodes:
  START: {type: start, next: a}
  a:
    handler: ledger.work
    queue: work
    params: {value: "{{ inputs.n }}", seconds: "{{ inputs.seconds }}"}
    retry: {max_attempts: 50}
    next: b
  b:
    handler: ledger.work
    queue: work
    params: {value: "{{ nodes.a.output.value + 1 }}", seconds: "{{ inputs.seconds }}"}
    retry: {max_attempts: 50}
    next: c
  c:
    handler: ledger.work
    queue: work
    params: {value: "{{ nodes.b.output.value + 1 }}", seconds: "{{ inputs.seconds }}"}
    retry: {max_attempts: 50}
    next: END
  END: {type: end}
""",
    _chain,
)


def _fan(inputs: Inputs) -> Outcome:
    squares = [{"value": item * item} for item in inputs["items"]]
    children = dict.fromkeys((f"spread__{index}" for index in range(len(squares))), "completed")
    gathered = {"results": squares, "count": len(squares), "failed": 0}
    total = sum(square["value"] for square in squares)
    return _completed("START spread gather total END", {"gather": gathered, "total": {"value": total}}, **children)


_FAN = """
workflow_id: fan
inputs:
  items: {type: array}
  seconds: {type: number, default: 0.02}
nodes:
  START: {type: start, next: spread}
  spread:
    type: fan_out
    source: "{{ inputs.items }}"
    task:
      handler: ledger.work
      queue: work
      params: {value: "{{ item * item }}", seconds: "{{ inputs.seconds }}"}
      retry: {max_attempts: 50}
    next: gather
  gather: {type: fan_in, next: total}
  total:
    handler: ledger.work
    queue: work
    params: {value: "{{ nodes.gather.output.results | map(attribute='value') | sum }}", seconds: 0.01}
    retry: {max_attempts: 50}
    next: END
  END: {type: end}
"""
FAN = Shape("fan", _FAN, _fan)
NARROW_FAN = Shape(
    "narrow_fan",
    _FAN.replace(": fan\n", ": narrow_fan\n", 1).replace("    task:", "    max_parallel: 4\n    task:"),
    _fan,
)


def _fork(inputs: Inputs) -> Outcome:
    weight = inputs["weight"]
    taken, left = ("heavy", "light") if weight >= 10 else ("light", "heavy")
    results = {"weigh": {"value": weight}, taken: {"value": weight * 2}, "join": {"value": taken}}
    return _completed(f"START weigh route {taken} join END", results, **{left: "skipped"})


FORK = Shape(
    "fork",
    """
workflow_id: fork
inputs:
  weight: {type: integer}
  seconds: {type: number, default: 0.02}
nodes:
  START: {type: start, next: weigh}
  weigh:
    handler: ledger.work
    queue: work
    params: {value: "{{ inputs.weight }}", seconds: "{{ inputs.seconds }}"}
    retry: {max_attempts: 50}
    next: route
  route:
    type: conditional
    condition: "{{ nodes.weigh.output.value >= 10 }}"
    on_true: heavy
    on_false: light
  heavy:
    handler: ledger.work
    queue: work
    params: {value: "{{ nodes.weigh.output.value * 2 }}", seconds: "{{ inputs.seconds }}"}
    retry: {max_attempts: 50}
    next: join
  light:
    handler: ledger.work
    queue: work
    params: {value: "{{ nodes.weigh.output.value * 2 }}", seconds: "{{ inputs.seconds }}"}
    retry: {max_attempts: 50}
    next: join
  join:
    handler: ledger.work
    queue: work
    params: {value: "{{ nodes.route.output.taken | first }}"}
    retry: {max_attempts: 50}
    next: END
  END: {type: end}
""",
    _fork,
)


def _flaky(inputs: Inputs) -> Outcome:
    return _completed("START try END", {"try": {"value": "in the end"}})


FLAKY = Shape(
    "flaky",
    """
workflow_id: flaky
nodes:
  START: {type: start, next: try}
  try:
    handler: ledger.work
    queue: work
    params: {value: in the end, fail_attempts: 2}
    retry: {max_attempts: 50, backoff: fixed, initial_delay_seconds: 0.1}
    next: END
  END: {type: end}
""",
    _flaky,
)


def _doomed(inputs: Inputs) -> Outcome:
    return Outcome("failed", {"START": "completed", "try": "failed", "never": "skipped", "END": "skipped"}, {})


DOOMED = Shape(
    "doomed",
    """
workflow_id: doomed
nodes:
  START: {type: start, next: try}
  try:
    handler: ledger.work
    queue: work
    params: {fail_attempts: 1000}
    retry: {max_attempts: 2, backoff: fixed, initial_delay_seconds: 0.1}
    next: never
  never: {handler: ledger.work, queue: work, retry: {max_attempts: 2}, next: END}
  END: {type: end}
""",
    _doomed,
    max_retries=2,
)


def _long(inputs: Inputs) -> Outcome:
    return _completed("START toil END", {"toil": {"value": "done"}})


LONG = Shape(
    "long",
    """
workflow_id: long
inputs:
  first_seconds: {type: number}
nodes:
  START: {type: start, next: toil}
  toil:
    handler: ledger.work
    queue: work
    params: {value: done, first_seconds: "{{ inputs.first_seconds }}"}
    retry: {max_attempts: 3}
    next: END
  END: {type: end}
""",
    _long,
    max_retries=3,
)

SHAPES = {shape.workflow_id: shape for shape in (CHAIN, FAN, NARROW_FAN, FORK, FLAKY, DOOMED, LONG)}
