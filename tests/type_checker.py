"""The configuration of mypy for user code."""

# No public type comes from these: reading them takes three times as long as all the rest.
CONFIGURATION = """
[mypy]
follow_imports = silent

[mypy-alembic.*,anyio.*,click.*,cryptography.*,httpcore.*,httpx.*,jinja2.*,opentelemetry.*,psycopg.*,psycopg_pool.*]
follow_imports = skip

[mypy-pydantic_settings.*,rich.*,sqlalchemy.*,sqlmodel.*,typer.*,yaml.*]
follow_imports = skip

[mypy-dagmaster.cli.*,dagmaster.orchestrator.*,dagmaster.store.*,dagmaster.web.*,dagmaster.worker.*]
follow_imports = skip
"""
