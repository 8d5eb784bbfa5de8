"""The types of ids, so that the type checker notices when they are mixed up."""

from typing import NewType

JobId = NewType("JobId", int)
NodeId = NewType("NodeId", str)
TaskId = NewType("TaskId", str)  # of an attempt: `{job_id}_{node_id}_{attempt}`
WorkerId = NewType("WorkerId", str)
OrchestratorId = NewType("OrchestratorId", str)  # also of the owner of a job
ScheduleId = NewType("ScheduleId", str)
