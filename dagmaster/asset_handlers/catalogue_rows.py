"""The catalogue as its readers see it, in pages, for copies."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dagmaster.assets.exposure import Audience, catalogue_scope
from dagmaster.assets.stac_documents import Urls, collection_reply, item_reply
from dagmaster.store.connect import Connection
from dagmaster.store.stac_items import ItemFilter, Place, list_collections, search_items

PAGE = 1000
MAX_COLLECTIONS = 10_000


class CopyParams(BaseModel):
    """`base_url` is the readers' address of the API, for links to pages and data. Default: what the public may see."""

    model_config = ConfigDict(extra="forbid")

    base_url: Annotated[str, Field(pattern=r"^https?://[^\s?#]+$")]
    audience: Audience = Audience.PUBLIC

    @property
    def urls(self) -> Urls:
        return Urls(self.base_url.rstrip("/"))


async def read_collections(conn: Connection, params: CopyParams) -> list[dict[str, Any]]:
    """The collections with an item that the audience may see."""
    rows = await list_collections(conn, catalogue_scope(params.audience), limit=MAX_COLLECTIONS)
    return [collection_reply(row, params.urls).model_dump(mode="json", exclude_unset=True) for row in rows]


async def read_items(conn: Connection, params: CopyParams) -> AsyncIterator[list[dict[str, Any]]]:
    """Items in pages, without the location of their files in the storage."""
    after: Place | None = None
    while True:
        rows = await search_items(conn, catalogue_scope(params.audience), ItemFilter(), after=after, limit=PAGE)
        if rows:
            yield [item_reply(row, params.urls).model_dump(mode="json", exclude_unset=True) for row in rows]
        if len(rows) < PAGE:
            return
        after = Place(rows[-1]["at"], rows[-1]["collection_id"], rows[-1]["item_id"])
