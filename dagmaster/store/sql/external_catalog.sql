-- external_tables --
-- Whether the catalogue exists, and whether this is dagmaster's own database.
SELECT to_regclass('dagapp.layer_catalog') IS NOT NULL AND to_regclass('dagapp.layer_revisions') IS NOT NULL AS is_complete,
    to_regclass('dagapp.dag_jobs') IS NOT NULL AS is_own;

-- advance_layer_revision --
-- No row if a later state has arrived. Locks the asset's layer until the transaction ends.
INSERT INTO dagapp.layer_revisions AS r (asset_id, revision) VALUES (:asset_id, :revision)
ON CONFLICT (asset_id) DO UPDATE SET revision = excluded.revision WHERE r.revision < excluded.revision
RETURNING r.asset_id;
