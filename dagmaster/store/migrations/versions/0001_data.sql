-- The tables of the data plane: an entry for each table in ClickHouse.

CREATE TYPE dagapp.data_scope AS ENUM ('temp', 'job', 'global');
CREATE TYPE dagapp.data_object_state AS ENUM ('creating', 'ready', 'expired');

CREATE TABLE dagapp.data_objects (
    object_id bigint PRIMARY KEY,
    name varchar(128),
    scope dagapp.data_scope NOT NULL,
    state dagapp.data_object_state NOT NULL DEFAULT 'creating',
    job_id bigint,
    task_id varchar(128),
    program_id bigint,
    location text NOT NULL,
    row_count bigint,
    size_bytes bigint,
    columns jsonb,
    plan jsonb,
    sql text,
    inputs bigint[] NOT NULL DEFAULT '{}',
    inline_rows bytea,
    has_table boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now()
);
-- They are compressed by the client.
ALTER TABLE dagapp.data_objects ALTER COLUMN inline_rows SET STORAGE EXTERNAL;
CREATE INDEX ix_data_objects_name ON dagapp.data_objects (name) WHERE name IS NOT NULL;
CREATE INDEX ix_data_objects_job ON dagapp.data_objects (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX ix_data_objects_expired ON dagapp.data_objects (object_id) WHERE state = 'expired';

-- The nodes that use a table, which is kept until they have ended, or until their job has ended if they passed it on.
-- The tables of a job's inputs are used by the node '', which does not exist.
CREATE TABLE dagapp.data_object_uses (
    object_id bigint NOT NULL,
    job_id bigint NOT NULL,
    node_id varchar(128) NOT NULL,
    is_passed_on boolean NOT NULL DEFAULT false,
    PRIMARY KEY (object_id, job_id, node_id)
);
CREATE INDEX ix_data_object_uses_node ON dagapp.data_object_uses (job_id, node_id);

-- Programs with open tables outside of tasks. They renew a lease; their unfinished tables are dropped after it.
CREATE TABLE dagapp.data_programs (
    program_id bigint PRIMARY KEY,
    heartbeat_at timestamptz NOT NULL DEFAULT now()
);
