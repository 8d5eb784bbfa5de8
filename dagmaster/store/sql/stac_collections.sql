-- lock_collection --
-- Lock the collection until the end of the transaction.
SELECT collection_id, content, layer_asset_id, replaced
FROM dagapp.stac_collections WHERE collection_id = :collection_id FOR UPDATE;

-- lock_collections_of_layer --
-- The collections that the layer of this asset describes.
SELECT collection_id, content, layer_asset_id, replaced
FROM dagapp.stac_collections WHERE layer_asset_id = :asset_id ORDER BY collection_id FOR UPDATE;

-- add_collection --
-- No row if the id exists.
INSERT INTO dagapp.stac_collections (collection_id, content, layer_asset_id, replaced)
VALUES (:collection_id, :content::jsonb, :layer_asset_id, :replaced::jsonb)
ON CONFLICT (collection_id) DO NOTHING
RETURNING collection_id;

-- change_collection --
UPDATE dagapp.stac_collections
SET content = :content::jsonb, layer_asset_id = :layer_asset_id, replaced = :replaced::jsonb,
    updated_at = clock_timestamp()
WHERE collection_id = :collection_id;

-- remove_collection --
-- A collection with items stays, with its last description, and is no longer linked to the layer.
WITH kept AS (
    UPDATE dagapp.stac_collections c SET layer_asset_id = NULL, replaced = NULL, updated_at = clock_timestamp()
    WHERE c.collection_id = :collection_id
        AND EXISTS (SELECT FROM dagapp.stac_items i WHERE i.collection_id = c.collection_id)
    RETURNING c.collection_id
)
DELETE FROM dagapp.stac_collections
WHERE collection_id = :collection_id AND collection_id NOT IN (SELECT collection_id FROM kept);
