-- find_pgstac --
SELECT to_regclass('pgstac.items') IS NOT NULL AS has_pgstac;

-- list_own_collections --
-- The collections that this catalogue has or had items in; pgSTAC's others are not touched.
SELECT collection_id FROM dagapp.stac_collections ORDER BY collection_id;
