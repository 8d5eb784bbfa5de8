"""A first workflow for new users; it needs only the built-in handlers."""

from pathlib import Path

from dagmaster.errors import Conflict

FILE = "sample.yaml"
TEXT = """\
# Greet some people in parallel, and count them.
workflow_id: sample
description: Greet some people in parallel, and count them.
inputs:
  names: {type: array, default: [Ada, Grace, Edsger], description: The names to greet.}
nodes:
  each_name:
    type: fan_out
    source: "{{ inputs.names }}"
    task:
      handler: hello_world
      params: {message: "Hello, {{ item }}!"}
    next: pause
  pause:
    handler: sleep
    params: {seconds: 2}
    next: everybody
  everybody:
    type: fan_in
    source_node: each_name
    next: report
  report:
    handler: hello_world
    params: {message: "Greeted {{ nodes.everybody.output.count }} people."}
"""


def write_sample(folder: Path) -> Path:
    """Write the file, creating the folder if needed. Raises Conflict if the file exists."""
    path = folder / FILE
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEXT)
    except FileExistsError:
        raise Conflict(f"{path} already exists") from None
    return path
