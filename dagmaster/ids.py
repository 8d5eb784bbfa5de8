"""The types of ids: whoever mixes them up is told by the type checker."""

from typing import NewType

JobId = NewType("JobId", int)
NodeId = NewType("NodeId", str)
TaskId = NewType("TaskId", str)  # of an attempt: `{job_id}_{node_id}_{attempt}`
WorkerId = NewType("WorkerId", str)
