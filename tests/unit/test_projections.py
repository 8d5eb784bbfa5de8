"""The projections of a layer as values: a collection is described and restored."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from dagmaster.assets.projections import catalog_entry, described, undescribed
from dagmaster.errors import Conflict
from dagmaster.store.asset_versions import VersionRow
from dagmaster.store.layers import LayerRow
from dagmaster.store.stac_collections import Collection

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def layer(**changes: Any) -> LayerRow:
    row = {
        "asset_id": "a1",
        "data_type": "vector",
        "display_name": "Roads",
        "description": "All roads",
        "attribution": "OSM",
        "keywords": ["roads"],
        "style": {"color": "red"},
        "legend": None,
        "field_metadata": None,
        "min_zoom": 3,
        "max_zoom": 18,
        "default_visible": True,
        "sort_order": 1,
        "thumbnail_url": None,
        "published_at": None,
        "published_externally_at": None,
        "created_at": NOW,
        "updated_at": NOW,
        "version": 1,
        "platform_id": "ddh",
    }
    return cast(LayerRow, {**row, **changes})


def version(**changes: Any) -> VersionRow:
    row = {
        "asset_id": "a1",
        "version_ordinal": 2,
        "table_name": "geo.roads",
        "stac_collection_id": None,
        "bbox": [0.0, 1.0, 2.0, 3.0],
    }
    return cast(VersionRow, {**row, **changes})


def test_a_catalogue_entry_is_keyed_by_the_versions_table() -> None:
    entry = catalog_entry(layer(), version())
    assert entry is not None
    assert (entry["table_name"], entry["source_asset_id"], entry["version_ordinal"]) == ("geo.roads", "a1", 2)
    assert (entry["style"], entry["bbox"], entry["max_zoom"]) == ({"color": "red"}, [0.0, 1.0, 2.0, 3.0], 18)


def test_a_version_without_a_table_has_no_entry() -> None:
    assert catalog_entry(layer(), version(table_name=None)) is None


def test_an_asset_without_a_collection_gets_its_own() -> None:
    collection = described(None, layer(), version())
    assert (collection.collection_id, collection.layer_asset_id, collection.replaced) == ("a1", "a1", None)
    assert collection.content["type"] == "Collection"
    assert collection.content["extent"]["spatial"] == {"bbox": [[0.0, 1.0, 2.0, 3.0]]}
    assert (collection.content["title"], collection.content["keywords"]) == ("Roads", ["roads"])
    assert collection.content["summaries"] == {
        "layer:asset_id": ["a1"],
        "layer:data_type": ["vector"],
        "layer:attribution": ["OSM"],
        "layer:style": [{"color": "red"}],
        "layer:zoom": {"minimum": 3, "maximum": 18},
    }
    assert undescribed(collection) is None


ORIGINAL = {
    "type": "Collection",
    "id": "imagery",
    "title": "Imagery",
    "description": "From the sky",
    "links": [{"rel": "self", "href": "https://example.org"}],
    "summaries": {"gsd": [10]},
}


def test_an_existing_collection_is_described_and_restored() -> None:
    before = Collection("imagery", ORIGINAL)
    once = described(before, layer(), version(stac_collection_id="imagery"))
    assert (once.content["title"], once.content["links"]) == ("Roads", ORIGINAL["links"])
    assert once.content["summaries"]["gsd"] == [10]
    assert once.replaced == {"title": "Imagery", "description": "From the sky"}
    again = described(once, layer(display_name="Streets", style=None, keywords=[]), version())
    assert (again.content["title"], again.replaced) == ("Streets", once.replaced)
    assert "layer:style" not in again.content["summaries"]
    assert "keywords" not in again.content
    assert undescribed(again) == before


def test_describing_twice_changes_nothing() -> None:
    once = described(Collection("imagery", ORIGINAL), layer(), version())
    assert described(once, layer(), version()) == once


def test_a_layer_without_a_description_keeps_that_of_the_collection() -> None:
    document = described(Collection("imagery", ORIGINAL), layer(description=None), version())
    assert document.content["description"] == "From the sky"
    assert described(None, layer(description=None), version()).content["description"] == "Roads"


def test_a_collection_is_described_by_one_layer() -> None:
    taken = described(Collection("imagery", ORIGINAL), layer(asset_id="other"), version())
    with pytest.raises(Conflict, match="by the layer of asset 'other'; unpublish that one first"):
        described(taken, layer(), version())
