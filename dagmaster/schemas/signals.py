"""What the waiting nodes of a job are told."""

from typing import Annotated, Any

from pydantic import Field

from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.schemas.common import Body, Id, Reply


class SendSignal(Body):
    """`data` is any JSON; it is in the output of the node that waits for the signal."""

    data: Any = None


class SignalReply(Reply):
    """It is stored; the job's owner hears of it within a moment."""

    job_id: Id
    name: str
    status: JobStatus


class Decide(Body):
    """`comment` is kept with the decision."""

    comment: Annotated[str, Field(max_length=2000)] | None = None


class DecisionReply(Reply):
    """What became of the node. `is_done` is false when the job's owner had not yet acted when we answered."""

    job_id: Id
    node_id: str
    status: NodeStatus
    is_done: bool
