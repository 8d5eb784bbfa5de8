-- Platforms, assets, their versions and the requests of partners: the types, tables, indexes and triggers.

CREATE TYPE dagapp.approval_state AS ENUM ('pending_review', 'approved', 'rejected');
CREATE TYPE dagapp.clearance_state AS ENUM ('uncleared', 'ouo', 'public');
CREATE TYPE dagapp.processing_status AS ENUM ('queued', 'processing', 'completed', 'failed');
CREATE TYPE dagapp.asset_event_type AS ENUM (
    'asset_created', 'version_submitted', 'version_approved', 'version_rejected', 'version_resubmitted',
    'version_reprocessed', 'version_deleted', 'asset_deleted', 'exposure_changed', 'asset_cleared',
    'asset_made_public', 'processing_started', 'processing_completed', 'processing_failed', 'export_queued',
    'export_completed', 'export_failed', 'metadata_published', 'metadata_unpublished',
    'review_requested', 'export_removed'
);

CREATE TABLE dagapp.platforms (
    platform_id varchar(64) PRIMARY KEY,
    display_name varchar(128) NOT NULL,
    required_refs text[] NOT NULL,
    optional_refs text[] NOT NULL DEFAULT '{}',
    is_active boolean NOT NULL DEFAULT true,
    allowed_workflows text[],
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_platforms_required_refs CHECK (cardinality(required_refs) > 0)
);

CREATE TABLE dagapp.geospatial_assets (
    asset_id varchar(64) PRIMARY KEY,
    platform_id varchar(64) NOT NULL,
    platform_refs jsonb NOT NULL,
    data_type varchar(16) NOT NULL,
    clearance_state dagapp.clearance_state NOT NULL DEFAULT 'uncleared',
    cleared_at timestamptz,
    cleared_by varchar(128),
    made_public_at timestamptz,
    made_public_by varchar(128),
    exposure_mode varchar(16) NOT NULL DEFAULT 'latest_only',
    latest_approved_version_ordinal integer,
    next_ordinal integer NOT NULL DEFAULT 0,
    deleted_at timestamptz,
    deleted_by varchar(128),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version integer NOT NULL DEFAULT 0,
    FOREIGN KEY (platform_id) REFERENCES dagapp.platforms (platform_id),
    CONSTRAINT ck_geospatial_assets_data_type CHECK (data_type IN ('raster', 'vector')),
    CONSTRAINT ck_geospatial_assets_exposure_mode CHECK (exposure_mode IN ('latest_only', 'all_versions'))
);
CREATE INDEX ix_geospatial_assets_platform ON dagapp.geospatial_assets (platform_id, created_at)
    WHERE deleted_at IS NULL;
CREATE INDEX ix_geospatial_assets_refs ON dagapp.geospatial_assets USING gin (platform_refs jsonb_path_ops)
    WHERE deleted_at IS NULL;

CREATE TABLE dagapp.asset_versions (
    asset_id varchar(64) NOT NULL,
    version_ordinal integer NOT NULL,
    version_label varchar(256),
    platform_refs jsonb NOT NULL DEFAULT '{}',
    approval_state dagapp.approval_state NOT NULL DEFAULT 'pending_review',
    approval_by varchar(128),
    approval_at timestamptz,
    approval_reason varchar(2000),
    processing_status dagapp.processing_status NOT NULL DEFAULT 'queued',
    processing_started_at timestamptz,
    processing_completed_at timestamptz,
    processing_error varchar(2000),
    current_job_id bigint,
    revision integer NOT NULL DEFAULT 1,
    blob_path text,
    table_name text,
    stac_item_id text,
    stac_collection_id text,
    content_hash text,
    bbox double precision[],
    export_job_id bigint,
    external_blob_path text,
    adf_run_id text,
    exported_at timestamptz,
    export_error varchar(2000),
    submitted_by varchar(128) NOT NULL DEFAULT '',
    deleted_at timestamptz,
    deleted_by varchar(128),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version integer NOT NULL DEFAULT 0,
    PRIMARY KEY (asset_id, version_ordinal),
    FOREIGN KEY (asset_id) REFERENCES dagapp.geospatial_assets (asset_id)
);
-- Versions are resolved in order: while one is in review or rejected, no other can be added.
CREATE UNIQUE INDEX uq_asset_versions_unresolved ON dagapp.asset_versions (asset_id)
    WHERE approval_state IN ('pending_review', 'rejected') AND deleted_at IS NULL;
CREATE INDEX ix_asset_versions_refs ON dagapp.asset_versions USING gin (platform_refs jsonb_path_ops)
    WHERE deleted_at IS NULL;
CREATE INDEX ix_asset_versions_review ON dagapp.asset_versions (created_at)
    WHERE approval_state = 'pending_review' AND deleted_at IS NULL;

-- The history of an asset: each event and its actor. It outlives the jobs.
CREATE TABLE dagapp.asset_events (
    event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    asset_id varchar(64) NOT NULL,
    version_ordinal integer,
    event_type dagapp.asset_event_type NOT NULL,
    actor varchar(128),
    reason varchar(2000),
    job_id bigint,
    event_data jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ix_asset_events_asset ON dagapp.asset_events (asset_id, event_id);

-- Requests of partners and of the gateway, under ids that they chose. A request may have no job. A request about an
-- asset outlives its job.
CREATE TABLE dagapp.dag_api_requests (
    request_id varchar(128) PRIMARY KEY,
    platform_id varchar(64),
    workflow_id varchar(64) NOT NULL,
    asset_id varchar(64),
    version_ordinal integer,
    job_id bigint,
    status dagapp.job_status NOT NULL DEFAULT 'pending',
    error_message varchar(2000),
    submitted_by varchar(128) NOT NULL DEFAULT '',
    idempotency_key varchar(128),
    request_hash varchar(64) NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    completed_at timestamptz
);
CREATE INDEX ix_dag_api_requests_job ON dagapp.dag_api_requests (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX ix_dag_api_requests_platform ON dagapp.dag_api_requests (platform_id, created_at);
CREATE INDEX ix_dag_api_requests_asset ON dagapp.dag_api_requests (asset_id) WHERE asset_id IS NOT NULL;
CREATE UNIQUE INDEX uq_dag_api_requests_idempotency_key ON dagapp.dag_api_requests (idempotency_key, submitted_by)
    WHERE idempotency_key IS NOT NULL;

-- `is_external`: the layer should be in the external database. `external_pending` is the revision that was sent there
-- and not confirmed. `refreshed_*` is the version that was projected last, `refresh_after` when the next refresh is due.
CREATE TABLE dagapp.layer_metadata (
    asset_id varchar(64) PRIMARY KEY,
    data_type varchar(16) NOT NULL,
    display_name varchar(256) NOT NULL,
    description text,
    attribution text,
    keywords text[] NOT NULL DEFAULT '{}',
    style jsonb,
    legend jsonb,
    field_metadata jsonb,
    min_zoom integer NOT NULL DEFAULT 0,
    max_zoom integer NOT NULL DEFAULT 24,
    default_visible boolean NOT NULL DEFAULT true,
    sort_order integer NOT NULL DEFAULT 0,
    thumbnail_url text,
    published_at timestamptz,
    published_externally_at timestamptz,
    is_external boolean NOT NULL DEFAULT false,
    external_pending timestamptz,
    refreshed_ordinal integer,
    refreshed_version integer,
    refresh_after timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version integer NOT NULL DEFAULT 1,
    FOREIGN KEY (asset_id) REFERENCES dagapp.geospatial_assets (asset_id),
    CONSTRAINT ck_layer_metadata_zoom CHECK (min_zoom >= 0 AND min_zoom <= max_zoom AND max_zoom <= 24)
);

-- A projection of published layers for map clients. The asset may be in another database, so there is no foreign key.
CREATE TABLE dagapp.layer_catalog (
    table_name varchar(256) PRIMARY KEY,
    source_asset_id varchar(64) NOT NULL,
    version_ordinal integer,
    data_type varchar(16) NOT NULL,
    display_name varchar(256) NOT NULL,
    description text,
    attribution text,
    keywords text[] NOT NULL DEFAULT '{}',
    style jsonb,
    legend jsonb,
    field_metadata jsonb,
    min_zoom integer NOT NULL,
    max_zoom integer NOT NULL,
    default_visible boolean NOT NULL,
    sort_order integer NOT NULL,
    thumbnail_url text,
    bbox double precision[],
    published_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_layer_catalog_asset ON dagapp.layer_catalog (source_asset_id);

-- In the external database: the last revision of each asset, including those that removed the layer.
CREATE TABLE dagapp.layer_revisions (
    asset_id varchar(64) PRIMARY KEY,
    revision timestamptz NOT NULL
);

-- The asset whose published layer describes the collection, and the replaced description: null if the collection
-- exists only for the layer.
CREATE TABLE dagapp.stac_collections (
    collection_id varchar(256) PRIMARY KEY,
    content jsonb NOT NULL,
    layer_asset_id varchar(64),
    replaced jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_stac_collections_layer ON dagapp.stac_collections (layer_asset_id) WHERE layer_asset_id IS NOT NULL;

-- The catalogue entries of versions. Asset and version decide who may see an entry. No foreign key to the collection:
-- describing a collection locks it, and no job must wait for that.
CREATE TABLE dagapp.stac_items (
    collection_id varchar(256) NOT NULL,
    item_id varchar(256) NOT NULL,
    asset_id varchar(64) NOT NULL,
    version_ordinal integer NOT NULL,
    bounds box,
    during tstzrange NOT NULL,
    content jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (collection_id, item_id),
    FOREIGN KEY (asset_id, version_ordinal) REFERENCES dagapp.asset_versions (asset_id, version_ordinal)
);
CREATE INDEX ix_stac_items_bounds ON dagapp.stac_items USING gist (bounds);
CREATE INDEX ix_stac_items_during ON dagapp.stac_items USING gist (during);
CREATE INDEX ix_stac_items_version ON dagapp.stac_items (asset_id, version_ordinal);

-- The identity of an asset is a hash of its platform and references, so neither can change.
CREATE FUNCTION dagapp.keep_asset_identity() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the platform and the references of an asset cannot change' USING ERRCODE = 'DM003';
END $$;

CREATE TRIGGER keep_asset_identity BEFORE UPDATE ON dagapp.geospatial_assets FOR EACH ROW
    WHEN (NEW.asset_id <> OLD.asset_id OR NEW.platform_id <> OLD.platform_id OR NEW.platform_refs <> OLD.platform_refs)
    EXECUTE FUNCTION dagapp.keep_asset_identity();

-- Whether a value is valid for this output of a job: a box of four numbers, or a string with the length of a path or name.
CREATE FUNCTION dagapp.is_job_output(name text, value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(CASE WHEN name = 'bbox' THEN jsonb_path_match(value,
            '$.type() == "array" && $.size() == 4 && !exists($[*] ? (@.type() != "number" || @ > 1e12 || @ < -1e12))')
        WHEN name IN ('stac_collection', 'stac_item') THEN jsonb_typeof(value) = 'object'
        WHEN name = 'stac_items' THEN jsonb_typeof(value) = 'array'
        ELSE jsonb_typeof(value) = 'string' AND length(value #>> '{}') BETWEEN 1 AND 2000 END, false)
$$;

-- The outputs of a completed job for its version: each from the node that completed last with it, a node of the job or
-- of a child job. One pass over the nodes, whatever their number; by key, even with a plan that was made while the
-- tables were empty.
CREATE FUNCTION dagapp.job_outputs(job bigint) RETURNS jsonb LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    WITH RECURSIVE family(job_id, depth) AS (
        SELECT job, 0
        UNION ALL
        SELECT c.job_id, f.depth + 1
        FROM family f
        CROSS JOIN LATERAL (
            SELECT job_id, parent_node_id, parent_task_id FROM dagapp.dag_jobs
            WHERE parent_job_id = f.job_id AND status = 'completed'
            OFFSET 0 -- By key: the planner may know nothing yet about tables with the rows of all jobs.
        ) c
        WHERE f.depth < 10 AND (
            SELECT n.task_id = c.parent_task_id AND n.parent_node_id IS NULL FROM dagapp.dag_node_states n
            WHERE n.job_id = f.job_id AND n.node_id = c.parent_node_id
        )
    ), names AS (
        SELECT ARRAY['blob_path', 'table_name', 'stac_item_id', 'stac_collection_id', 'content_hash', 'bbox',
            'external_blob_path', 'adf_run_id', 'stac_collection', 'stac_item', 'stac_items'] AS names
    ), named AS (
        SELECT DISTINCT ON (name) name, n.output -> name AS value
        FROM family f
        CROSS JOIN names
        CROSS JOIN LATERAL (
            SELECT node_id, completed_at, output FROM dagapp.dag_node_states
            WHERE job_id = f.job_id AND parent_node_id IS NULL AND status = 'completed' AND output ?| names.names
            OFFSET 0
        ) n
        CROSS JOIN unnest(names.names) AS name
        WHERE dagapp.is_job_output(name, n.output -> name)
        ORDER BY name, n.completed_at DESC, f.depth, n.node_id
    )
    SELECT coalesce(jsonb_object_agg(name, value), '{}') FROM named
$$;

-- The box of a STAC item; null if it has no valid one. A box across the antimeridian extends beyond 180 degrees.
CREATE FUNCTION dagapp.stac_bounds(bbox jsonb) RETURNS box LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    west float8;
    east float8;
BEGIN
    IF jsonb_path_match(bbox, '$.type() == "array" && $.size() == 4 && !exists($[*] ? (@.type() != "number"))') THEN
        west := bbox ->> 0;
        east := bbox ->> 2;
        RETURN box(
            point(west, (bbox ->> 1)::float8),
            point(CASE WHEN west > east THEN east + 360 ELSE east END, (bbox ->> 3)::float8)
        );
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- The time of a STAC item; null if it has no valid one.
CREATE FUNCTION dagapp.stac_during(properties jsonb) RETURNS tstzrange LANGUAGE plpgsql STABLE AS $$
DECLARE
    first timestamptz;
    last timestamptz;
BEGIN
    first := coalesce(properties ->> 'start_datetime', properties ->> 'datetime');
    last := coalesce(properties ->> 'end_datetime', properties ->> 'datetime');
    RETURN CASE WHEN first IS NOT NULL AND last IS NOT NULL THEN tstzrange(first, last, '[]') END;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- The outputs `stac_collection`, `stac_item` and `stac_items` of a job replace the catalogue entries of its version. An
-- existing collection is not changed; an id that another version has stays with that version. Values that are not STAC
-- documents, or name another asset, are ignored: an output must never stop the job.
CREATE FUNCTION dagapp.store_stac_documents(outputs jsonb, asset text, ordinal integer) RETURNS void LANGUAGE sql AS $$
    -- Nobody else adds documents until the end of the transaction: two that add the same ones in another order would wait
    -- for each other.
    SELECT pg_advisory_xact_lock(hashtextextended('dagmaster stac documents', 0))
    WHERE outputs ?| ARRAY['stac_collection', 'stac_item', 'stac_items'];

    INSERT INTO dagapp.stac_collections (collection_id, content)
    SELECT document ->> 'id', document
    FROM (SELECT outputs -> 'stac_collection') AS documents(document)
    WHERE jsonb_typeof(document -> 'id') = 'string' AND length(document ->> 'id') BETWEEN 1 AND 256
    ON CONFLICT DO NOTHING;

    DELETE FROM dagapp.stac_items WHERE asset_id = asset AND version_ordinal = ordinal;

    INSERT INTO dagapp.stac_items (collection_id, item_id, asset_id, version_ordinal, bounds, during, content)
    SELECT c.collection_id, document ->> 'id', asset, ordinal, dagapp.stac_bounds(document -> 'bbox'),
        dagapp.stac_during(document -> 'properties'), document
    FROM (
        SELECT outputs -> 'stac_item'
        UNION ALL
        SELECT jsonb_array_elements(outputs -> 'stac_items')
    ) AS documents(document)
    JOIN dagapp.stac_collections c ON c.collection_id = document ->> 'collection'
    WHERE jsonb_typeof(document -> 'id') = 'string' AND length(document ->> 'id') BETWEEN 1 AND 256
        AND dagapp.stac_during(document -> 'properties') IS NOT NULL
        AND coalesce(document #>> '{properties,platform:asset_id}', asset) = asset
    ON CONFLICT DO NOTHING;
$$;

-- In the transaction that moves the job: its processed or exported version and its request move with it. A job that is
-- no longer the version's current one changes nothing.
CREATE FUNCTION dagapp.follow_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    problem text := CASE NEW.status
        WHEN 'failed' THEN NEW.error_message
        WHEN 'cancelled' THEN 'the job was cancelled' END;
    moved dagapp.asset_event_type;
    is_completed boolean := NEW.status = 'completed';
    outputs jsonb;
BEGIN
    UPDATE dagapp.dag_api_requests
    SET status = NEW.status, error_message = problem, completed_at = NEW.completed_at
    WHERE job_id = NEW.job_id;
    IF NEW.asset_id IS NULL THEN
        RETURN NULL;
    END IF;
    IF is_completed THEN
        outputs := dagapp.job_outputs(NEW.job_id);
    END IF;

    UPDATE dagapp.asset_versions v
    SET processing_status = CASE NEW.status
            WHEN 'running' THEN 'processing' WHEN 'completed' THEN 'completed' ELSE 'failed' END::dagapp.processing_status,
        processing_started_at = coalesce(NEW.started_at, v.processing_started_at),
        processing_completed_at = NEW.completed_at,
        processing_error = problem,
        blob_path = CASE WHEN is_completed THEN outputs ->> 'blob_path' ELSE v.blob_path END,
        table_name = CASE WHEN is_completed THEN outputs ->> 'table_name' ELSE v.table_name END,
        stac_item_id = CASE WHEN is_completed THEN outputs ->> 'stac_item_id' ELSE v.stac_item_id END,
        stac_collection_id = CASE WHEN is_completed THEN outputs ->> 'stac_collection_id' ELSE v.stac_collection_id END,
        content_hash = CASE WHEN is_completed THEN outputs ->> 'content_hash' ELSE v.content_hash END,
        -- Rounded to what a double can hold: a number that is almost zero would be an error.
        bbox = CASE WHEN NOT is_completed THEN v.bbox WHEN outputs ? 'bbox' THEN ARRAY(
            SELECT round(part::numeric, 15)::double precision FROM jsonb_array_elements_text(outputs -> 'bbox') AS part
        ) END,
        updated_at = now(),
        version = v.version + 1
    WHERE v.asset_id = NEW.asset_id AND v.version_ordinal = NEW.version_ordinal AND v.current_job_id = NEW.job_id
        AND v.deleted_at IS NULL
        AND v.processing_status IN (
            'queued', CASE WHEN NEW.status = 'running' THEN 'failed' ELSE 'processing' END::dagapp.processing_status
        );
    IF FOUND THEN
        moved := CASE NEW.status WHEN 'running' THEN 'processing_started'
            WHEN 'completed' THEN 'processing_completed' ELSE 'processing_failed' END;
        IF is_completed THEN
            PERFORM dagapp.store_stac_documents(outputs, NEW.asset_id, NEW.version_ordinal);
        END IF;
    ELSIF NEW.status = 'running' THEN -- It is being processed again, and was so since that was decided.
        UPDATE dagapp.asset_versions v SET processing_started_at = NEW.started_at, updated_at = now()
        WHERE v.asset_id = NEW.asset_id AND v.version_ordinal = NEW.version_ordinal AND v.current_job_id = NEW.job_id
            AND v.processing_status = 'processing' AND v.processing_started_at IS NULL AND v.deleted_at IS NULL;
    END IF;

    IF NEW.status <> 'running' THEN
        UPDATE dagapp.asset_versions v
        SET external_blob_path = CASE WHEN is_completed THEN outputs ->> 'external_blob_path' ELSE v.external_blob_path END,
            adf_run_id = CASE WHEN is_completed THEN outputs ->> 'adf_run_id' ELSE v.adf_run_id END,
            exported_at = CASE WHEN is_completed THEN NEW.completed_at ELSE v.exported_at END,
            export_error = problem,
            updated_at = now(),
            version = v.version + 1
        WHERE v.asset_id = NEW.asset_id AND v.version_ordinal = NEW.version_ordinal AND v.export_job_id = NEW.job_id;
        IF FOUND THEN
            moved := CASE NEW.status WHEN 'completed' THEN 'export_completed' ELSE 'export_failed' END;
        END IF;
    END IF;

    IF moved IS NOT NULL THEN
        INSERT INTO dagapp.asset_events (asset_id, version_ordinal, event_type, reason, job_id)
        VALUES (NEW.asset_id, NEW.version_ordinal, moved, problem, NEW.job_id);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER follow_job AFTER UPDATE OF status ON dagapp.dag_jobs FOR EACH ROW
    WHEN (NEW.status <> OLD.status AND (NEW.asset_id IS NOT NULL OR NEW.correlation_id IS NOT NULL))
    EXECUTE FUNCTION dagapp.follow_job();

-- The default platforms of every installation; an operator's changes stay.
CREATE FUNCTION dagapp.seed_platforms() RETURNS integer LANGUAGE plpgsql AS $$
DECLARE added integer;
BEGIN
    INSERT INTO dagapp.platforms (platform_id, display_name, required_refs, optional_refs) VALUES
        ('ddh', 'Data Development Hub', '{dataset_id,resource_id}', '{version_id}'),
        ('arcgis', 'ArcGIS Online', '{item_id}', '{layer_id,version_id}'),
        ('geonode', 'GeoNode', '{uuid}', '{alternate,version_id}')
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    RETURN added;
END $$;

SELECT dagapp.seed_platforms();
