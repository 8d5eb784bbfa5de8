-- note_command --
-- Record a command in the audit log.
INSERT INTO dagapp.dag_job_events (
    job_id, event_type, event_status, event_data, error_message, duration_ms, created_at, source_app
)
VALUES (0, 'command', :event_status::dagapp.event_status, :data::jsonb, left(:error, 2000), :duration_ms,
    clock_timestamp(), :source_app);

-- note_orchestrator --
-- Events of an instance without a job are stored under job 0.
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, created_at, source_app)
VALUES (0, :event_type::dagapp.event_type, :event_status::dagapp.event_status, :data::jsonb, clock_timestamp(),
    'orchestrator');
