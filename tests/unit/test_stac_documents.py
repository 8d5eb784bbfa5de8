"""Items and collections are valid STAC and describe the raster and its provider."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pystac
import pytest
import rasterio
from rasters import DEM, RGB, create_cog

from dagmaster.errors import Invalid
from dagmaster.geo.raster.cog import CogInfo
from dagmaster.geo.raster.validate import validate
from dagmaster.geo.stac.items import DatetimeSource, Moment, make_collection, make_item, resolve_datetime

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
GIVEN = Moment(at=NOW, source=DatetimeSource.GIVEN)
# The fields of the extensions that items use, as in their schemas, which are online.
NUMBERS = {"type": "array", "items": {"type": "number"}}
PROPERTIES = {
    "required": ["proj:code", "proj:shape", "proj:transform", "proj:bbox"],
    "properties": {
        "proj:code": {"type": ["string", "null"], "pattern": "^[A-Z]+:[0-9]+$"},
        "proj:shape": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        "proj:transform": {**NUMBERS, "minItems": 6, "maxItems": 9},
        "proj:bbox": {**NUMBERS, "minItems": 4, "maxItems": 6},
    },
}
ASSET = {
    "required": ["file:size", "file:checksum", "bands"],
    "properties": {
        "file:size": {"type": "integer", "minimum": 1},
        "file:checksum": {"type": "string", "pattern": "^1220[a-f0-9]{64}$"},
        "bands": {
            "items": {
                "required": ["name", "data_type", "statistics"],
                "properties": {
                    "data_type": {"enum": ["uint8", "uint16", "int16", "float32"]},
                    "nodata": {"type": ["number", "string"]},
                    "statistics": {
                        "additionalProperties": {"type": "number"},
                        "required": ["minimum", "maximum", "mean", "stddev", "valid_percent"],
                    },
                    "raster:sampling": {"enum": ["area", "point"]},
                },
            }
        },
    },
}


@pytest.fixture(scope="module", params=[RGB, DEM], ids=["rgb", "dem"])
def cog(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CogInfo]:
    target = tmp_path_factory.mktemp("cogs") / "cog.tif"
    report = validate(request.param)
    assert report.profile is not None
    return target, create_cog(request.param, target, report.profile, target_crs="EPSG:3857")


def check(item: dict[str, Any]) -> None:
    pystac.Item.from_dict({**item, "stac_extensions": []}).validate()
    jsonschema.validate(item["properties"], PROPERTIES)
    jsonschema.validate(item["assets"]["data"], ASSET)


def test_an_item_is_valid_and_describes_the_file(cog: tuple[Path, CogInfo]) -> None:
    path, info = cog
    refs: dict[str, str | int] = {"dataset_id": "7", "resource_id": "dem", "version_id": "2", "request_id": "r-1"}
    item = make_item("a-0", "ddh", info, "silver/a.tif", GIVEN, platform=refs, title="Elevation")
    check(item)
    properties = item["properties"]
    assert {name: properties[f"platform:{name}"] for name in refs} == refs
    assert (properties["datetime"], properties["title"]) == ("2026-05-01T12:00:00Z", "Elevation")
    with rasterio.open(path) as dataset:
        assert properties["proj:code"] == f"EPSG:{dataset.crs.to_epsg()}"
        assert properties["proj:shape"] == list(dataset.shape)
        assert properties["proj:transform"] == list(dataset.transform)[:6]
        assert properties["proj:bbox"] == pytest.approx(list(dataset.bounds))
        bands = item["assets"]["data"]["bands"]
        assert [band["data_type"] for band in bands] == list(dataset.dtypes)
        assert [band["nodata"] for band in bands] == list(dataset.nodatavals)
        for index, band in enumerate(bands, 1):
            assert band["statistics"]["mean"] == pytest.approx(dataset.read(index, masked=True).mean())
    assert item["assets"]["data"]["file:size"] == path.stat().st_size


def test_a_collection_is_valid() -> None:
    collection = make_collection("ddh", title="Hub", keywords=["elevation"])
    pystac.Collection.from_dict(collection).validate()
    assert (collection["id"], collection["title"], collection["keywords"]) == ("ddh", "Hub", ["elevation"])


@pytest.mark.parametrize(
    "requested, in_file, expected, source",
    [
        (NOW, "2020:01:02 03:04:05", NOW, DatetimeSource.GIVEN),
        (NOW.replace(tzinfo=None), None, NOW, DatetimeSource.GIVEN),
        (NOW.astimezone(timezone(timedelta(hours=2))), None, NOW, DatetimeSource.GIVEN),
        (None, "2020:01:02 03:04:05", datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC), DatetimeSource.FILE),
        (None, "yesterday", NOW, DatetimeSource.REGISTRATION),
        (None, None, NOW, DatetimeSource.REGISTRATION),
    ],
)
def test_an_item_names_the_source_of_its_datetime(
    requested: datetime | None, in_file: str | None, expected: datetime, source: DatetimeSource
) -> None:
    assert resolve_datetime(requested, in_file, NOW) == Moment(at=expected, source=source)


@pytest.mark.parametrize("text", ["", "a/b", "../x", "ä", "a b", "x" * 257])
def test_an_id_that_is_invalid_in_a_url_is_refused(cog: tuple[Path, CogInfo], text: str) -> None:
    with pytest.raises(Invalid, match="item_id"):
        make_item(text, "ddh", cog[1], "silver/a.tif", GIVEN)
    with pytest.raises(Invalid, match="collection_id"):
        make_collection(text)
