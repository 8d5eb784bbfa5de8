-- The tables of the data plane: an entry for each table in ClickHouse.

CREATE TYPE dagapp.data_scope AS ENUM ('temp', 'job', 'global');
CREATE TYPE dagapp.data_object_state AS ENUM ('creating', 'ready', 'expired');

CREATE TABLE dagapp.data_objects (
    object_id bigint NOT NULL,
    name varchar(128),
    scope dagapp.data_scope NOT NULL,
    state dagapp.data_object_state NOT NULL DEFAULT 'creating',
    job_id bigint,
    task_id varchar(128),
    location text NOT NULL,
    row_count bigint,
    size_bytes bigint,
    columns jsonb,
    plan jsonb,
    sql text,
    inputs bigint[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (object_id)
);
CREATE INDEX ix_data_objects_name ON dagapp.data_objects (name) WHERE name IS NOT NULL;
CREATE INDEX ix_data_objects_job ON dagapp.data_objects (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX ix_data_objects_expired ON dagapp.data_objects (object_id) WHERE state = 'expired';

-- The jobs that use a table which is not theirs alone: it is not dropped before they have ended.
CREATE TABLE dagapp.data_object_uses (
    object_id bigint NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (object_id, job_id)
);
