"""A job owner without an event loop: loads, decides and commits step by step."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dagmaster.engine.change_set import ChangeSet, Rules
from dagmaster.engine.decide import decide
from dagmaster.engine.messages import Message
from dagmaster.ids import JobId
from dagmaster.model.graph import Graph
from dagmaster.store import job_states, submission
from dagmaster.store.batch import Batch, commit, settle_versions
from dagmaster.store.connect import Connection, connect, connect_hot, keep_json
from dagmaster.store.instances import Instance, register_orchestrator, this_instance
from dagmaster.store.job_states import Loaded
from dagmaster.store.submission import NewJob, Submitted

NO_JOB = JobId(0)


@dataclass
class Owner:
    conn: Connection
    me: Instance = field(default_factory=this_instance)
    graphs: dict[str, Graph] = field(default_factory=dict)
    loaded: Loaded | None = None
    job_id: JobId = NO_JOB

    @property
    def id(self) -> str:
        return self.me.instance_id

    async def submit(self, graph: Graph, inputs: Mapping[str, Any] | None = None, **options: Any) -> Submitted:
        self.graphs[graph.workflow.content_hash] = graph
        new = NewJob(graph, inputs or {}, **options)
        submitted = await submission.submit(self.conn, new, threshold_seconds=30, owner_id=self.id)
        self.job_id = submitted.job_id
        return submitted

    async def load_jobs(self, *job_ids: JobId) -> list[Loaded]:
        rows = await job_states.job_rows(self.conn, self.id, job_ids)
        loaded, _ = await job_states.restore_rows(self.conn, rows, self.graphs)
        return loaded

    async def load(self, job_id: JobId | None = None) -> Loaded:
        [loaded] = await self.load_jobs(job_id or self.job_id)
        return loaded

    def decide(self, loaded: Loaded, *messages: Message) -> ChangeSet:
        return decide(loaded.state, messages, datetime.now(UTC), Rules())

    def batch(self, *change_sets: tuple[ChangeSet, int], **options: Any) -> Batch:
        return Batch(self.id, change_sets=list(change_sets), **options)

    async def advance(self, *messages: Message, mail: tuple[int, ...] = ()) -> ChangeSet:
        """Decide and commit for the job last submitted."""
        if self.loaded is None or self.loaded.state.job_id != self.job_id:
            self.loaded = await self.load()
        changes = self.decide(self.loaded, *messages)
        batch = self.batch((changes, self.loaded.owner_epoch), mail=list(mail))
        await commit(self.conn, batch)
        settle_versions(batch)
        return changes


@asynccontextmanager
async def owner(dsn: str, *, hot: bool = True) -> AsyncIterator[Owner]:
    """A registered orchestrator that acts only on request."""
    connected = connect_hot(dsn, application="test owner") if hot else connect(dsn, application="test owner")
    async with await connected as conn:
        keep_json(conn)
        created = Owner(conn)
        await register_orchestrator(conn, created.me)
        yield created
