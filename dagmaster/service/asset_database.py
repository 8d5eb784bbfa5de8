"""The asset service over the database."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from dagmaster.assets import layers
from dagmaster.errors import Invalid
from dagmaster.model.asset import AssetFilter, Platform
from dagmaster.service import asset_submission, assets
from dagmaster.service.asset_contract import AssetCommand, AssetQuery, AssetResult, AssetSubmitResult, Reprocess
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import Row
from dagmaster.service.definitions import Definitions
from dagmaster.store import assets as asset_store
from dagmaster.store import layers as layer_store
from dagmaster.store import platforms as platform_store
from dagmaster.store.asset_versions import list_versions
from dagmaster.store.audit import note_command

MAX_VERSIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class DatabaseAssetService:
    """`definitions` are needed to process versions and to export them."""

    context: ServiceContext
    definitions: Definitions | None = None

    async def assets(self, query: AssetQuery, *, limit: int) -> Sequence[Row]:
        where = AssetFilter(**asdict(query))
        return cast(Sequence[Row], await asset_store.list_assets(self.context.conn, where, limit=limit))

    async def asset(self, asset_id: str) -> Row:
        asset = await asset_store.get_asset(self.context.conn, asset_id)
        return {**asset, "versions": await list_versions(self.context.conn, asset_id, limit=MAX_VERSIONS)}

    async def history(self, asset_id: str, *, limit: int) -> Sequence[Row]:
        await asset_store.get_asset(self.context.conn, asset_id)
        return cast(Sequence[Row], await asset_store.list_asset_events(self.context.conn, asset_id, limit=limit))

    async def decide(self, asset_id: str, command: AssetCommand) -> AssetResult:
        return await assets.decide(self.context, self.definitions, asset_id, command)

    async def reprocess(self, asset_id: str, command: Reprocess) -> AssetSubmitResult:
        if self.definitions is None:
            raise Invalid("no workflows are loaded here")
        return await asset_submission.reprocess(self.context, self.definitions, asset_id, command)

    async def platforms(self) -> Sequence[Row]:
        return await platform_store.list_platforms(self.context.conn)

    async def add_platform(self, platform: Platform) -> Row:
        context = self.context
        return await platform_store.add_platform(
            context.conn, platform, actor=context.actor, source_app=context.source_app
        )

    async def layers(self, *, limit: int) -> Sequence[Row]:
        return cast(Sequence[Row], await layer_store.list_layers(self.context.conn, limit=limit))

    async def publish_layer(self, asset_id: str) -> Row:
        publication = await layers.publish(self.context.conn, asset_id, actor=self.context.actor)
        return await self._noted("metadata.publish", {"asset_id": asset_id}, publication.as_record())

    async def publish_layers(self) -> Row:
        report = await layers.publish_all(self.context.conn, actor=self.context.actor)
        return await self._noted("metadata.publish", {"all": True}, asdict(report))

    async def unpublish_layer(self, asset_id: str) -> Row:
        dsn = self.context.settings.external_dsn()
        publication = await layers.unpublish(self.context.conn, asset_id, actor=self.context.actor, external_dsn=dsn)
        return await self._noted("metadata.unpublish", {"asset_id": asset_id}, publication.as_record())

    async def _noted(self, command: str, params: Mapping[str, Any], result: dict[str, Any]) -> Row:
        data = {"command": command, "actor": self.context.actor, "params": params, "result": result}
        await note_command(self.context.conn, data, source_app=self.context.source_app)
        return result
