-- external_tables --
-- Whether the catalogue is there, and whether this is a database of dagmaster's own.
SELECT to_regclass('dagapp.layer_catalog') IS NOT NULL AS has_catalog, to_regclass('dagapp.dag_jobs') IS NOT NULL AS is_own;
