"""Build STAC items of rasters, and collections, valid by the schemas of STAC and its extensions."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import pystac
from pydantic import BaseModel

from dagmaster.errors import Invalid
from dagmaster.geo.raster.cog import CogInfo
from dagmaster.geo.raster.validate import Band

PROJECTION: Final = "https://stac-extensions.github.io/projection/v2.0.0/schema.json"
RASTER: Final = "https://stac-extensions.github.io/raster/v2.0.0/schema.json"
FILE: Final = "https://stac-extensions.github.io/file/v2.1.0/schema.json"
# Multihash: the code of SHA2-256 and its length, before the digest.
SHA256_MULTIHASH: Final = "1220"
MAX_ID: Final = 256
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TIFF_DATETIME: Final = "%Y:%m:%d %H:%M:%S"


class DatetimeSource(StrEnum):
    """The source of the time: the sender, the file, or else the registration itself."""

    GIVEN = "given"
    FILE = "file"
    REGISTRATION = "registration"


class Moment(BaseModel, frozen=True):
    at: datetime
    source: DatetimeSource


def resolve_datetime(given: datetime | None, in_file: str | None, now: datetime) -> Moment:
    """Times without a zone are UTC."""
    if given is not None:
        return Moment(at=_utc(given), source=DatetimeSource.GIVEN)
    if in_file:
        try:
            return Moment(at=_utc(datetime.strptime(in_file, _TIFF_DATETIME)), source=DatetimeSource.FILE)
        except ValueError:
            pass  # The tag is free text in practice.
    return Moment(at=_utc(now), source=DatetimeSource.REGISTRATION)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def check_id(text: str, name: str) -> str:
    """Ids are used in URLs."""
    if len(text) > MAX_ID or not _ID.fullmatch(text):
        raise Invalid(
            f"{name}: {text[:80]!r} must be 1 to {MAX_ID} letters, digits, points, hyphens and underscores, "
            "beginning with a letter or a digit"
        )
    return text


def make_item(
    item_id: str,
    collection_id: str,
    cog: CogInfo,
    href: str,
    moment: Moment,
    *,
    platform: Mapping[str, str | int] | None = None,
    title: str | None = None,
) -> dict[str, Any]:
    """The item of a raster."""
    bands = [{**_band(band), "raster:sampling": cog.sampling} for band in cog.bands]
    return build_item(
        item_id,
        collection_id,
        moment,
        platform,
        title,
        properties=_projection(cog),
        stac_extensions=[PROJECTION, RASTER, FILE],
        geometry=cog.footprint,
        bbox=list(cog.bbox),
        assets={"data": file_asset(href, pystac.MediaType.COG, "data", cog.size_bytes, cog.sha256, bands=bands)},
    )


def build_item(
    item_id: str,
    collection_id: str,
    moment: Moment,
    platform: Mapping[str, str | int] | None,
    title: str | None,
    *,
    properties: Mapping[str, Any],
    **content: Any,
) -> dict[str, Any]:
    """`platform` becomes the properties `platform:NAME`. `content` are other arguments of pystac's Item."""
    common = {
        **({"title": title} if title else {}),
        "platform:datetime_source": str(moment.source),
        **{f"platform:{name}": value for name, value in (platform or {}).items()},
    }
    item = pystac.Item(
        id=check_id(item_id, "item_id"),
        datetime=moment.at,
        collection=check_id(collection_id, "collection_id"),
        properties={**common, **properties},
        **content,
    )
    item.add_link(pystac.Link(pystac.RelType.COLLECTION, f"../../{collection_id}", pystac.MediaType.JSON))
    return dict(item.to_dict(include_self_link=False))


def file_asset(href: str, media_type: str, role: str, size_bytes: int, sha256: str, **extra: Any) -> pystac.Asset:
    about = {"file:size": size_bytes, "file:checksum": f"{SHA256_MULTIHASH}{sha256}", **extra}
    return pystac.Asset(href=href, media_type=media_type, roles=[role], extra_fields=about)


def _projection(cog: CogInfo) -> dict[str, Any]:
    a, b, c, d, e, f = cog.transform
    has_code = "[" not in cog.crs
    right, bottom = c + a * cog.width + b * cog.height, f + d * cog.width + e * cog.height
    return {
        **({"proj:code": cog.crs} if has_code else {"proj:code": None, "proj:wkt2": cog.crs}),
        "proj:shape": [cog.height, cog.width],
        "proj:transform": [a, b, c, d, e, f],
        "proj:bbox": [c, bottom, right, f],
    }


def _band(band: Band) -> dict[str, Any]:
    return {
        "name": band.description or (f"band_{band.index}" if band.colour in ("gray", "undefined") else band.colour),
        "data_type": band.dtype,
        **({"nodata": band.nodata} if band.nodata is not None else {}),
        "statistics": band.statistics.model_dump(exclude={"classes"}, exclude_none=True),
    }


def make_collection(
    collection_id: str,
    *,
    title: str | None = None,
    description: str | None = None,
    licence: str = "other",
    keywords: Sequence[str] = (),
) -> dict[str, Any]:
    """Its extent is the globe; the server replaces it by the extent of the visible items."""
    always: list[list[datetime | None]] = [[None, None]]
    extent = pystac.Extent(pystac.SpatialExtent([[-180.0, -90.0, 180.0, 90.0]]), pystac.TemporalExtent(always))
    collection = pystac.Collection(
        id=check_id(collection_id, "collection_id"),
        description=description or f"The rasters of {title or collection_id}.",
        extent=extent,
        title=title,
        license=licence,
        keywords=list(keywords) or None,
    )
    return dict(collection.to_dict(include_self_link=False))
