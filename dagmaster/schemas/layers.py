"""The metadata of layers, the catalogue of published layers, and the results of publishing."""

from typing import Annotated

from pydantic import Field, model_validator

from dagmaster.model.asset import DataType
from dagmaster.schemas.common import Body, Json, Reply, Time

Zoom = Annotated[int, Field(ge=0, le=24)]
Actor = Annotated[str, Field(min_length=1, max_length=128)]
Keyword = Annotated[str, Field(min_length=1, max_length=128)]


class LayerFields(Body):
    """How maps show the data of an asset."""

    display_name: Annotated[str, Field(min_length=1, max_length=256)]
    description: Annotated[str, Field(max_length=20_000)] | None = None
    attribution: Annotated[str, Field(max_length=2000)] | None = None
    keywords: Annotated[list[Keyword], Field(max_length=100)] = Field(default_factory=list)
    style: Json | None = None
    legend: Json | None = None
    field_metadata: Json | None = None
    min_zoom: Zoom = 0
    max_zoom: Zoom = 24
    default_visible: bool = True
    sort_order: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    thumbnail_url: Annotated[str, Field(max_length=2000, pattern=r"^https?://")] | None = None

    @model_validator(mode="after")
    def _zooms_in(self) -> "LayerFields":
        if self.min_zoom > self.max_zoom:
            raise ValueError(f"min_zoom ({self.min_zoom}) must not be greater than max_zoom ({self.max_zoom})")
        return self


class NewLayer(LayerFields):
    """The metadata of an asset that has none."""

    asset_id: Annotated[str, Field(min_length=1, max_length=64)]
    data_type: DataType | None = Field(default=None, description="if given, it must be that of the asset")
    actor: Actor | None = Field(default=None, description="the author, if it differs from the name of the key")


class LayerReplacement(LayerFields):
    """Replaces all fields; omitted ones get their defaults. `version` is the version that was read."""

    version: Annotated[int, Field(ge=1)]
    data_type: DataType | None = Field(default=None, description="if given, it must be that of the asset")
    actor: Actor | None = Field(default=None, description="the author, if it differs from the name of the key")


class ShownLayer(Reply):
    """How maps show a layer, as stored."""

    data_type: DataType
    display_name: str
    description: str | None
    attribution: str | None
    keywords: list[str]
    style: Json | None
    legend: Json | None
    field_metadata: Json | None
    min_zoom: int
    max_zoom: int
    default_visible: bool
    sort_order: int
    thumbnail_url: str | None


class LayerReply(ShownLayer):
    """`has_unpublished_changes`: the metadata has changed since the layer was published."""

    asset_id: str
    platform_id: str
    published_at: Time | None
    published_externally_at: Time | None
    has_unpublished_changes: bool
    created_at: Time
    updated_at: Time
    version: int


class CatalogEntryReply(ShownLayer):
    """A published layer, for map clients."""

    table_name: str
    source_asset_id: str
    version_ordinal: int | None
    bbox: list[float] | None
    published_at: Time
