"""The bodies of the STAC API. Other fields of STAC documents are passed on."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dagmaster.schemas.common import Body, Json


class StacReply(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)


class StacLink(StacReply):
    rel: str
    href: str
    type: str | None = None
    title: str | None = None
    method: Literal["GET", "POST"] | None = None
    body: Json | None = None
    merge: bool | None = None


class StacConformance(StacReply):
    conforms_to: list[str] = Field(alias="conformsTo")


class StacLanding(StacConformance):
    """The root catalogue of the API."""

    type: Literal["Catalog"] = "Catalog"
    stac_version: str
    id: str
    title: str
    description: str
    links: list[StacLink]


class StacCollection(StacReply):
    type: Literal["Collection"] = "Collection"
    stac_version: str
    id: str
    description: str
    license: str
    extent: Json
    links: list[StacLink]


class StacCollections(StacReply):
    collections: list[StacCollection]
    links: list[StacLink]
    number_returned: int = Field(alias="numberReturned")


class StacItem(StacReply):
    type: Literal["Feature"] = "Feature"
    stac_version: str
    id: str
    collection: str
    geometry: Json | None
    bbox: list[float] | None = None
    properties: dict[str, Any]
    assets: dict[str, Json]
    links: list[StacLink]


class StacItems(StacReply):
    """One page of a search."""

    type: Literal["FeatureCollection"] = "FeatureCollection"
    features: list[StacItem]
    links: list[StacLink]
    number_returned: int = Field(alias="numberReturned")


class StacQueryables(StacReply):
    """A JSON Schema of the properties that filters may name. Properties that an item does not have are null."""

    schema_id: str = Field(alias="$schema")
    id: str = Field(alias="$id")
    type: Literal["object"] = "object"
    title: str
    properties: dict[str, Json]
    additional_properties: bool = Field(default=True, alias="additionalProperties")


class StacSort(Body):
    field: Annotated[str, Field(min_length=1, max_length=200)]
    direction: Literal["asc", "desc"] = "asc"


class StacFields(Body):
    """The fields of the items to return, such as `properties.datetime`."""

    include: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)] | None = None
    exclude: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)] | None = None


class StacSearch(Body):
    """Conditions that must all hold. `token` comes from the link `next` of the previous page."""

    model_config = ConfigDict(populate_by_name=True)

    collections: Annotated[list[str], Field(max_length=100)] | None = None
    ids: Annotated[list[str], Field(max_length=1000)] | None = None
    bbox: Annotated[list[float], Field(min_length=4, max_length=6)] | None = None
    intersects: Json | None = Field(default=None, description="a GeoJSON geometry; not together with bbox")
    datetime: Annotated[str, Field(max_length=100)] | None = None
    filter: Json | Annotated[str, Field(max_length=4000)] | None = Field(
        default=None, description="CQL2, as JSON or as text"
    )
    filter_lang: Literal["cql2-json", "cql2-text"] | None = Field(default=None, alias="filter-lang")
    filter_crs: Literal["http://www.opengis.net/def/crs/OGC/1.3/CRS84"] | None = Field(default=None, alias="filter-crs")
    sortby: Annotated[list[StacSort], Field(max_length=3)] | None = None
    fields: StacFields | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 10
    token: Annotated[str, Field(max_length=2000)] | None = None
