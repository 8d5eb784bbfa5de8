"""Health, keys, commands and other system-wide resources."""

from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from dagmaster.model.access import Role
from dagmaster.schemas.common import Body, Id, Json, Reply, Time


class Welcome(Reply):
    name: str
    version: str
    links: dict[str, str]


class Alive(Reply):
    status: str


class CheckReply(Reply):
    """Without a key, only the status is shown."""

    name: str
    category: str
    status: str
    message: str | None = None
    details: Json | None = None


class HealthReply(Reply):
    status: str
    checks: list[CheckReply]


class KeyCreate(Body):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    role: Role
    platform_id: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="the one platform of a partner or a reviewer; null: all"
    )
    expires_at: AwareDatetime | None = None


class KeyReply(Reply):
    key_id: str
    name: str
    role: Role
    platform_id: str | None
    created_at: Time
    created_by: str | None
    expires_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None


class KeyList(Reply):
    keys: list[KeyReply]


class KeyCreated(Reply):
    """`key` is shown only once."""

    key_id: str
    name: str
    role: Role
    platform_id: str | None
    key: str


class FindingReply(Reply):
    name: str
    title: str
    meaning: str
    severity: str
    count: int
    repaired: int
    can_repair: bool
    is_open: bool
    examples: list[Json]


class PointReply(Reply):
    name: str
    state: str
    sentence: str
    data: Json


class DoctorReply(Reply):
    findings: list[FindingReply]
    database: list[PointReply]


class CommandCall(Body):
    params: Json = Field(default_factory=dict)
    actor: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        default=None, description="the actor, if it differs from the name of the key"
    )


class CommandReply(Reply):
    command: str
    result: Json
    duration_ms: int


class CommandSummary(Reply):
    """`params` is a JSON Schema."""

    name: str
    description: str
    roles: list[Role]
    params: Json


class CommandList(Reply):
    commands: list[CommandSummary]


class SchemaStatus(Reply):
    database: str
    revision: str | None
    head: str
    is_current: bool


class TableReply(Reply):
    name: str
    estimated_rows: int
    bytes: int


class TableList(Reply):
    tables: list[TableReply]


class Ddl(Reply):
    ddl: str


class Deploy(Body):
    """`confirm` must be "yes", unless `dry_run` is set."""

    confirm: str | None = None
    dry_run: bool = False


class Rebuild(Body):
    """`confirm` must be the name of the database. All of dagmaster's data in it is destroyed."""

    confirm: str


class Deployed(Reply):
    before: str | None
    after: str | None
    is_changed: bool
    message: str


class HandlerReply(Reply):
    name: str
    queue: str | None
    timeout_seconds: float | None
    params: Json | None


class HandlerList(Reply):
    handlers: list[HandlerReply]


class HandlerCall(Body):
    params: Json = Field(default_factory=dict)
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 30


class HandlerOutcome(Reply):
    handler: str
    success: bool
    output: Any
    error_message: str | None
    permanent: bool
    duration_ms: int


class Explanation(Reply):
    """Why a job or a node is not running, in one sentence; `data` has the same facts for programs."""

    job_id: Id
    node_id: str | None
    kind: str
    sentence: str
    data: Json
