-- make_secret --
-- The first who needs a secret makes it.
INSERT INTO dagapp.dag_secrets (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING;

-- read_secret --
SELECT value FROM dagapp.dag_secrets WHERE name = :name;
