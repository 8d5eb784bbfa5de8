-- make_secret --
-- The first process that needs a secret creates it.
INSERT INTO dagapp.dag_secrets (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING;

-- read_secret --
SELECT value FROM dagapp.dag_secrets WHERE name = :name;
