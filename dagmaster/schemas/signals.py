"""Signals and decisions for waiting nodes."""

from typing import Annotated, Any

from pydantic import Field

from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.schemas.common import Body, Id, Reply


class SendSignal(Body):
    """`data` is any JSON value; it becomes part of the output of the waiting node."""

    data: Any = None


class SignalReply(Reply):
    """The signal is stored; the job's owner is notified."""

    job_id: Id
    name: str
    status: JobStatus


class Decide(Body):
    """`comment` is stored with the decision."""

    comment: Annotated[str, Field(max_length=2000)] | None = None


class DecisionReply(Reply):
    """The state of the node. `is_done` is false if the job's owner has yet to act."""

    job_id: Id
    node_id: str
    status: NodeStatus
    is_done: bool
