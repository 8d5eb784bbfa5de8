"""The tables of platforms, assets, their versions and the requests of partners."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Enum,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    String,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, TSTZRANGE
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.types import UserDefinedType
from sqlmodel import Field

from dagmaster.model.asset import ASSET_EVENTS, ApprovalState, ClearanceState, ProcessingStatus
from dagmaster.model.states import JobStatus
from dagmaster.store.columns import (
    JOB_STATUS,
    MAX_ERROR,
    SCHEMA,
    Base,
    big_column,
    enum_column,
    enum_type,
    jsonb_column,
    time_column,
)


class BoxType(UserDefinedType[str]):
    """PostgreSQL's rectangle type, which SQLAlchemy does not know."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "box"


ischema_names["box"] = BoxType

APPROVAL_STATE = enum_type(ApprovalState, "approval_state")
CLEARANCE_STATE = enum_type(ClearanceState, "clearance_state")
PROCESSING_STATUS = enum_type(ProcessingStatus, "processing_status")
ASSET_EVENT_TYPE = Enum(*ASSET_EVENTS, name="asset_event_type", schema=SCHEMA)
NOT_DELETED = text("deleted_at IS NULL")
MAX_ACTOR = 128


def _with_default(default: str) -> dict[str, Any]:
    return {"server_default": text(default)}


def _strings(*, nullable: bool = False, default: str | None = None) -> Any:
    server_default = text(default) if default else None
    return Field(default=None, sa_column=Column(ARRAY(Text), nullable=nullable, server_default=server_default))


def _box() -> Any:
    return Field(default=None, sa_column=Column(ARRAY(DOUBLE_PRECISION), nullable=True))


def _text() -> Any:
    return Field(default=None, sa_column=Column(Text, nullable=True))


def _asset_key() -> Any:
    key = ForeignKey(f"{SCHEMA}.geospatial_assets.asset_id")
    return Field(sa_column=Column(String(64), key, primary_key=True))


class Platform(Base, table=True):
    """A partner's system. Adding one takes only a row."""

    __tablename__ = "platforms"
    __table_args__ = (CheckConstraint("cardinality(required_refs) > 0", name="ck_platforms_required_refs"),)
    platform_id: str = Field(primary_key=True, max_length=64)
    display_name: str = Field(max_length=128)
    required_refs: list[str] = _strings()
    optional_refs: list[str] = _strings(default="'{}'::text[]")
    is_active: bool = Field(default=True, sa_column_kwargs=_with_default("true"))
    # Null if its partners may submit every workflow.
    allowed_workflows: list[str] | None = _strings(nullable=True)
    created_at: datetime = time_column(default_now=True)
    updated_at: datetime = time_column(default_now=True)


class GeospatialAsset(Base, table=True):
    """A dataset of a platform, identified by a hash of its references there."""

    __tablename__ = "geospatial_assets"
    __table_args__ = (
        Index("ix_geospatial_assets_platform", "platform_id", "created_at", postgresql_where=NOT_DELETED),
        Index(
            "ix_geospatial_assets_refs",
            "platform_refs",
            postgresql_using="gin",
            postgresql_ops={"platform_refs": "jsonb_path_ops"},
            postgresql_where=NOT_DELETED,
        ),
        CheckConstraint("data_type IN ('raster', 'vector')", name="ck_geospatial_assets_data_type"),
        CheckConstraint("exposure_mode IN ('latest_only', 'all_versions')", name="ck_geospatial_assets_exposure_mode"),
    )
    asset_id: str = Field(primary_key=True, max_length=64)
    platform_id: str = Field(
        sa_column=Column(String(64), ForeignKey(f"{SCHEMA}.platforms.platform_id"), nullable=False)
    )
    # The identifying references; immutable (trigger).
    platform_refs: dict[str, Any] = jsonb_column(nullable=False)
    data_type: str = Field(max_length=16)
    clearance_state: ClearanceState = enum_column(CLEARANCE_STATE, "uncleared")
    cleared_at: datetime | None = time_column(nullable=True)
    cleared_by: str | None = Field(default=None, max_length=MAX_ACTOR)
    made_public_at: datetime | None = time_column(nullable=True)
    made_public_by: str | None = Field(default=None, max_length=MAX_ACTOR)
    exposure_mode: str = Field(max_length=16, sa_column_kwargs={"server_default": "latest_only"})
    latest_approved_version_ordinal: int | None = None
    # Ordinals are never reused: deletion leaves gaps.
    next_ordinal: int = Field(default=0, sa_column_kwargs=_with_default("0"))
    deleted_at: datetime | None = time_column(nullable=True)
    deleted_by: str | None = Field(default=None, max_length=MAX_ACTOR)
    created_at: datetime = time_column(default_now=True)
    updated_at: datetime = time_column(default_now=True)
    version: int = Field(default=0, sa_column_kwargs=_with_default("0"))


class AssetVersion(Base, table=True):
    """A delivery of an asset. At most one version per asset is in review or rejected (unique index)."""

    __tablename__ = "asset_versions"
    __table_args__ = (
        Index(
            "uq_asset_versions_unresolved",
            "asset_id",
            unique=True,
            postgresql_where=text("approval_state IN ('pending_review', 'rejected') AND deleted_at IS NULL"),
        ),
        Index(
            "ix_asset_versions_refs",
            "platform_refs",
            postgresql_using="gin",
            postgresql_ops={"platform_refs": "jsonb_path_ops"},
            postgresql_where=NOT_DELETED,
        ),
        Index(
            "ix_asset_versions_review",
            "created_at",
            postgresql_where=text("approval_state = 'pending_review' AND deleted_at IS NULL"),
        ),
    )
    asset_id: str = _asset_key()
    version_ordinal: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    # The partner's own name for the version: opaque.
    version_label: str | None = Field(default=None, max_length=256)
    # All references of the submission, including those that do not identify the asset.
    platform_refs: dict[str, Any] = jsonb_column("{}")
    approval_state: ApprovalState = enum_column(APPROVAL_STATE, "pending_review")
    approval_by: str | None = Field(default=None, max_length=MAX_ACTOR)
    approval_at: datetime | None = time_column(nullable=True)
    approval_reason: str | None = Field(default=None, max_length=MAX_ERROR)
    processing_status: ProcessingStatus = enum_column(PROCESSING_STATUS, "queued")
    processing_started_at: datetime | None = time_column(nullable=True)
    processing_completed_at: datetime | None = time_column(nullable=True)
    processing_error: str | None = Field(default=None, max_length=MAX_ERROR)
    current_job_id: int | None = big_column()
    # Counts the processing runs; the label and the ordinal stay.
    revision: int = Field(default=1, sa_column_kwargs=_with_default("1"))
    blob_path: str | None = _text()
    table_name: str | None = _text()
    stac_item_id: str | None = _text()
    stac_collection_id: str | None = _text()
    content_hash: str | None = _text()
    bbox: list[float] | None = _box()
    export_job_id: int | None = big_column()
    external_blob_path: str | None = _text()
    adf_run_id: str | None = _text()
    exported_at: datetime | None = time_column(nullable=True)
    export_error: str | None = Field(default=None, max_length=MAX_ERROR)
    submitted_by: str = Field(default="", max_length=MAX_ACTOR, sa_column_kwargs={"server_default": ""})
    deleted_at: datetime | None = time_column(nullable=True)
    deleted_by: str | None = Field(default=None, max_length=MAX_ACTOR)
    created_at: datetime = time_column(default_now=True)
    updated_at: datetime = time_column(default_now=True)
    version: int = Field(default=0, sa_column_kwargs=_with_default("0"))


class AssetEvent(Base, table=True):
    """The history of an asset: each event and its actor. It outlives the jobs."""

    __tablename__ = "asset_events"
    __table_args__ = (Index("ix_asset_events_asset", "asset_id", "event_id"),)
    event_id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    asset_id: str = Field(max_length=64)
    version_ordinal: int | None = None
    event_type: str = enum_column(ASSET_EVENT_TYPE)
    actor: str | None = Field(default=None, max_length=MAX_ACTOR)
    reason: str | None = Field(default=None, max_length=MAX_ERROR)
    job_id: int | None = big_column()
    event_data: dict[str, Any] | None = jsonb_column()
    created_at: datetime = Field(
        sa_column=Column(DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp())
    )


class DagApiRequest(Base, table=True):
    """A submission under an id that its sender chose. It may have no job, and outlives its job."""

    __tablename__ = "dag_api_requests"
    __table_args__ = (
        Index("ix_dag_api_requests_job", "job_id", postgresql_where=text("job_id IS NOT NULL")),
        Index("ix_dag_api_requests_platform", "platform_id", "created_at"),
        Index("ix_dag_api_requests_asset", "asset_id", postgresql_where=text("asset_id IS NOT NULL")),
        Index(
            "uq_dag_api_requests_idempotency_key",
            "idempotency_key",
            "submitted_by",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
    )
    request_id: str = Field(primary_key=True, max_length=128)
    platform_id: str | None = Field(default=None, max_length=64)
    workflow_id: str = Field(max_length=64)
    asset_id: str | None = Field(default=None, max_length=64)
    version_ordinal: int | None = None
    job_id: int | None = big_column()
    # Follows the job (trigger).
    status: JobStatus = enum_column(JOB_STATUS, "pending")
    error_message: str | None = Field(default=None, max_length=MAX_ERROR)
    submitted_by: str = Field(default="", max_length=MAX_ACTOR, sa_column_kwargs={"server_default": ""})
    idempotency_key: str | None = Field(default=None, max_length=128)
    request_hash: str = Field(max_length=64)
    created_at: datetime = time_column(default_now=True)
    completed_at: datetime | None = time_column(nullable=True)


class LayerMetadata(Base, table=True):
    """The presentation of an asset in map clients."""

    __tablename__ = "layer_metadata"
    __table_args__ = (
        CheckConstraint("min_zoom >= 0 AND min_zoom <= max_zoom AND max_zoom <= 24", name="ck_layer_metadata_zoom"),
    )
    asset_id: str = _asset_key()
    data_type: str = Field(max_length=16)
    display_name: str = Field(max_length=256)
    description: str | None = _text()
    attribution: str | None = _text()
    keywords: list[str] = _strings(default="'{}'::text[]")
    style: dict[str, Any] | None = jsonb_column()
    legend: dict[str, Any] | None = jsonb_column()
    field_metadata: dict[str, Any] | None = jsonb_column()
    min_zoom: int = Field(default=0, sa_column_kwargs=_with_default("0"))
    max_zoom: int = Field(default=24, sa_column_kwargs=_with_default("24"))
    default_visible: bool = Field(default=True, sa_column_kwargs=_with_default("true"))
    sort_order: int = Field(default=0, sa_column_kwargs=_with_default("0"))
    thumbnail_url: str | None = _text()
    published_at: datetime | None = time_column(nullable=True)
    published_externally_at: datetime | None = time_column(nullable=True)
    # Whether the external database should have it; the revision that was sent there and is not yet confirmed.
    is_external: bool = Field(default=False, sa_column_kwargs=_with_default("false"))
    external_pending: datetime | None = time_column(nullable=True)
    # The version that was projected last, and when the next refresh is due.
    refreshed_ordinal: int | None = None
    refreshed_version: int | None = None
    refresh_after: datetime | None = time_column(nullable=True)
    created_at: datetime = time_column(default_now=True)
    updated_at: datetime = time_column(default_now=True)
    version: int = Field(default=1, sa_column_kwargs=_with_default("1"))


class LayerCatalog(Base, table=True):
    """A copy of the published layers for map clients. The asset may be in another database."""

    __tablename__ = "layer_catalog"
    __table_args__ = (Index("ix_layer_catalog_asset", "source_asset_id"),)
    table_name: str = Field(primary_key=True, max_length=256)
    source_asset_id: str = Field(max_length=64)
    version_ordinal: int | None = None
    data_type: str = Field(max_length=16)
    display_name: str = Field(max_length=256)
    description: str | None = _text()
    attribution: str | None = _text()
    keywords: list[str] = _strings(default="'{}'::text[]")
    style: dict[str, Any] | None = jsonb_column()
    legend: dict[str, Any] | None = jsonb_column()
    field_metadata: dict[str, Any] | None = jsonb_column()
    min_zoom: int
    max_zoom: int
    default_visible: bool
    sort_order: int
    thumbnail_url: str | None = _text()
    bbox: list[float] | None = _box()
    published_at: datetime = time_column(default_now=True)


class LayerRevision(Base, table=True):
    """In the external database: the last revision of each asset, including those that removed the layer."""

    __tablename__ = "layer_revisions"
    asset_id: str = Field(primary_key=True, max_length=64)
    revision: datetime = time_column()


class StacCollection(Base, table=True):
    """The collections of the catalogue, as STAC documents."""

    __tablename__ = "stac_collections"
    __table_args__ = (
        Index("ix_stac_collections_layer", "layer_asset_id", postgresql_where=text("layer_asset_id IS NOT NULL")),
    )
    collection_id: str = Field(primary_key=True, max_length=256)
    content: dict[str, Any] = jsonb_column(nullable=False)
    # The asset whose published layer describes it, and the replaced content; null if it exists only for the layer.
    layer_asset_id: str | None = Field(default=None, max_length=64)
    replaced: dict[str, Any] | None = jsonb_column()
    created_at: datetime = time_column(default_now=True)
    updated_at: datetime = time_column(default_now=True)


class StacItem(Base, table=True):
    """The catalogue entries of versions, as STAC documents, with the columns they are searched by."""

    __tablename__ = "stac_items"
    __table_args__ = (
        ForeignKeyConstraint(
            ["asset_id", "version_ordinal"],
            [f"{SCHEMA}.asset_versions.asset_id", f"{SCHEMA}.asset_versions.version_ordinal"],
        ),
        Index("ix_stac_items_bounds", "bounds", postgresql_using="gist"),
        Index("ix_stac_items_during", "during", postgresql_using="gist"),
        Index("ix_stac_items_version", "asset_id", "version_ordinal"),
    )
    collection_id: str = Field(primary_key=True, max_length=256)
    item_id: str = Field(primary_key=True, max_length=256)
    asset_id: str = Field(max_length=64)
    version_ordinal: int
    # Exceeds 180 degrees across the antimeridian.
    bounds: str | None = Field(default=None, sa_column=Column(BoxType, nullable=True))
    during: Any = Field(sa_column=Column(TSTZRANGE, nullable=False))
    content: dict[str, Any] = jsonb_column(nullable=False)
    created_at: datetime = time_column(default_now=True)
    updated_at: datetime = time_column(default_now=True)
