import os
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from dagmaster.errors import Misconfigured
from dagmaster.settings import ALIASES, PREFIX, Settings, load_settings


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path):
    """An empty folder and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    aliases = {name for names in ALIASES.values() for name in names}
    for name in list(os.environ):
        if name.startswith(PREFIX) or name in aliases:
            monkeypatch.delenv(name)


def problems_of(**overrides: object) -> list[str]:
    with pytest.raises(Misconfigured) as caught:
        load_settings(**overrides)
    return str(caught.value).splitlines()


def test_everything_has_a_default():
    settings = load_settings()
    assert settings.database_dsn() is None
    assert settings.worker_queue is None and settings.worker_queues == []
    assert (settings.poll_interval_seconds, settings.heartbeat_interval_seconds) == (1.0, 30)
    assert (settings.orphan_threshold_seconds, settings.orphan_scan_interval_seconds) == (120, 60)
    assert (settings.default_task_timeout_seconds, settings.dispatch_timeout_seconds) == (3600, None)
    assert settings.data_dir == Path(".dagmaster")
    assert settings.max_output_bytes == 16 * 1024**2


@pytest.mark.parametrize(
    ("platform", "folder"), [("linux", Path("/var/log/dagmaster")), ("darwin", Path.home() / ".dagmaster" / "logs")]
)
def test_the_log_folder_is_the_platforms_own(monkeypatch, platform, folder):
    monkeypatch.setattr(sys, "platform", platform)
    assert load_settings().log_dir == folder


def test_sources_are_ordered_by_precedence(monkeypatch):
    Path("dagmaster.toml").write_text("worker_concurrency = 1\nmax_nodes = 1\nmax_fan_out = 1\nlog_level = 'debug'\n")
    Path(".env").write_text("DAGMASTER_WORKER_CONCURRENCY=2\nDAGMASTER_MAX_NODES=2\nDAGMASTER_MAX_FAN_OUT=2\n")
    monkeypatch.setenv("DAGMASTER_WORKER_CONCURRENCY", "3")
    monkeypatch.setenv("DAGMASTER_MAX_NODES", "3")
    settings = load_settings(worker_concurrency=4)
    assert (settings.worker_concurrency, settings.max_nodes, settings.max_fan_out) == (4, 3, 2)
    assert settings.log_level == "debug"


def test_an_alias_in_the_environment_overrides_the_full_name_in_a_file(monkeypatch):
    Path(".env").write_text("DAGMASTER_DATABASE_URL=postgresql://file/db\n")
    Path("dagmaster.toml").write_text("database_url = 'postgresql://toml/db'\n")
    monkeypatch.setenv("DATABASE_URL", "postgresql://environment/db")
    assert load_settings().database_dsn() == "postgresql://environment/db"


def test_in_one_source_the_full_name_overrides_its_alias(monkeypatch):
    monkeypatch.setenv("ORCHESTRATOR_POLL_INTERVAL", "9")
    monkeypatch.setenv("DAGMASTER_POLL_INTERVAL_SECONDS", "0.5")
    assert load_settings().poll_interval_seconds == 0.5


EXAMPLES = {
    "database_url": ("postgresql://host/db", SecretStr("postgresql://host/db")),
    "external_b2c_connection_string": ("postgresql://host/outside", SecretStr("postgresql://host/outside")),
    "run_mode": ("worker", "worker"),
    "log_level": ("ERROR", "error"),
    "log_format": ("JSON", "json"),
    "postgres_password": ("hush", SecretStr("hush")),
    "postgres_host": ("db", "db"),
    "postgres_db": ("geo", "geo"),
    "postgres_user": ("me", "me"),
    "worker_queue": ("heavy", "heavy"),
    "url": ("https://dagmaster.example.com/", "https://dagmaster.example.com"),
    "worker_url": ("http://worker.example.com:8080/", "http://worker.example.com:8080"),
    "allow_destructive_bootstrap": ("true", True),
    "orphan_threshold_seconds": ("77", 77),
    "heartbeat_interval_seconds": ("7", 7),
    "worker_heartbeat_interval_seconds": ("7", 7),
}


@pytest.mark.parametrize(("setting", "alias"), [(key, name) for key, names in ALIASES.items() for name in names])
def test_every_alias_is_read(monkeypatch, setting, alias):
    text, value = EXAMPLES.get(setting, ("42", 42))
    if setting.startswith("postgres_"):
        monkeypatch.setenv("POSTGRES_HOST", "db")
    monkeypatch.setenv(alias, text)
    assert getattr(load_settings(), setting) == value


def test_the_gateway_uses_its_own_database_or_the_common_one(monkeypatch):
    assert load_settings().gateway_dsn() is None
    monkeypatch.setenv("DATABASE_URL", "postgresql://owner@host/db")
    assert load_settings().gateway_dsn() == "postgresql://owner@host/db"
    monkeypatch.setenv("DAGMASTER_GATEWAY_DATABASE_URL", "postgresql://reader@host/db")
    assert load_settings().gateway_dsn() == "postgresql://reader@host/db"
    monkeypatch.setenv("DAGMASTER_GATEWAY_DATABASE_URL", "mysql://reader:hush@host/db")
    with pytest.raises(Misconfigured, match="DAGMASTER_GATEWAY_DATABASE_URL") as refused:
        load_settings()
    assert "hush" not in str(refused.value)


def test_every_alias_names_a_setting():
    assert set(ALIASES) <= set(Settings.model_fields)


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_variable_counts_as_unset(monkeypatch, empty):
    if empty is None:
        Path(".env").write_text("DATABASE_URL\n")
    else:
        monkeypatch.setenv("DATABASE_URL", empty)
    assert load_settings().database_dsn() is None


def test_unrelated_variables_in_the_env_file_are_ignored():
    Path(".env").write_text("FLASK_DEBUG=1\nDAGMASTER_LOG_FORMAT=json\n")
    assert load_settings().log_format == "json"


def test_lists_are_split_at_commas_and_may_be_toml_lists(monkeypatch):
    Path("dagmaster.toml").write_text("handlers = ['a.b', 'c.py']\n")
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUES", "fast, slow,")
    settings = load_settings()
    assert settings.handlers == ["a.b", "c.py"]
    assert settings.worker_queues == ["fast", "slow"]


def test_a_worker_consumes_the_default_queue_unless_configured():
    assert load_settings(worker_queue="heavy").worker_queues == ["heavy"]
    assert load_settings(worker_queue="heavy", worker_queues=["light"]).worker_queues == ["light"]


def test_folders_may_start_with_a_tilde():
    assert load_settings(data_dir="~/flows").data_dir == Path.home() / "flows"


def test_a_url_is_built_from_its_parts(monkeypatch):
    monkeypatch.setenv("POSTGRES_HOST", "db.example")
    assert load_settings().database_dsn() == "postgresql://db.example:5432/dagmaster"
    monkeypatch.setenv("POSTGRES_PORT", "6543")
    monkeypatch.setenv("POSTGRES_DB", "geo")
    monkeypatch.setenv("POSTGRES_USER", "me@corp")
    monkeypatch.setenv("POSTGRES_PASSWORD", "p@ss:w/rd")
    assert load_settings().database_dsn() == "postgresql://me%40corp:p%40ss%3Aw%2Frd@db.example:6543/geo"


def test_a_url_overrides_the_parts(monkeypatch):
    monkeypatch.setenv("POSTGRES_HOST", "parts")
    monkeypatch.setenv("DATABASE_URL", "postgresql://url/db")
    assert load_settings().database_dsn() == "postgresql://url/db"


def test_the_host_may_be_a_socket_folder():
    settings = load_settings(postgres_host="/var/run/postgresql")
    assert settings.database_dsn() == "postgresql://%2Fvar%2Frun%2Fpostgresql:5432/dagmaster"


def test_parts_without_a_host_are_refused(monkeypatch):
    monkeypatch.setenv("POSTGRES_DB", "geo")
    assert problems_of() == [
        "DAGMASTER_DATABASE_URL (default) or POSTGRES_HOST must be set, because POSTGRES_DB is set"
    ]


def test_passwords_are_never_shown(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hush@host/db")
    monkeypatch.setenv("POSTGRES_PASSWORD", "hush")
    settings = load_settings()
    assert "hush" not in repr(settings) + str(settings) + str(settings.model_dump())
    monkeypatch.setenv("DATABASE_URL", "mysql://me:hush@host/db")
    assert problems_of() == [
        "DATABASE_URL (environment) should look like postgresql://user:password@host:5432/database"
    ]


@pytest.mark.parametrize("url", ["sqlite:///x.db", "postgresql+asyncpg://h/d", "host=h dbname=d"])
def test_only_postgresql_urls_are_accepted(url):
    assert "database_url (argument) should look like" in problems_of(database_url=url)[0]


def test_all_problems_are_reported_at_once_with_their_sources(monkeypatch):
    Path("dagmaster.toml").write_text("log_format = 'xml'\nworkerqueue = 'x'\n")
    Path(".env").write_text("DAGMASTER_AUTO_MIGRATE=perhaps\n")
    monkeypatch.setenv("ORCHESTRATOR_POLL_INTERVAL", "-1")
    assert sorted(problems_of(max_nodes="many")) == sorted(
        [
            "ORCHESTRATOR_POLL_INTERVAL (environment) should be greater than 0, not '-1'",
            "DAGMASTER_AUTO_MIGRATE (.env) should be a valid boolean, unable to interpret input, not 'perhaps'",
            "log_format (dagmaster.toml) should be 'text' or 'json', not 'xml'",
            "workerqueue (dagmaster.toml) is not a setting; did you mean worker_queue?",
            "max_nodes (argument) should be a valid integer, unable to parse string as an integer, not 'many'",
        ]
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("POSTGRES_PORT", "70000"),
        ("HEARTBEAT_INTERVAL_SEC", "nan"),
        ("ORPHAN_THRESHOLD_SEC", "inf"),
        ("DAGMASTER_WORKER_CONCURRENCY", "0"),
        ("DAGMASTER_DISPATCH_TIMEOUT_SECONDS", "0"),
        ("DAGMASTER_TIMEOUT_GRACE_SECONDS", "-1"),
        ("WORKER_MAX_RETRIES", "-1"),
        ("WORKER_MAX_RETRIES", "2.5"),
        ("LOG_LEVEL", "loud"),
        ("RUN_MODE", "boss"),
    ],
)
def test_an_invalid_value_is_named_with_its_variable(monkeypatch, variable, value):
    monkeypatch.setenv("POSTGRES_HOST", "db")
    monkeypatch.setenv(variable, value)
    (problem,) = problems_of()
    assert problem.startswith(f"{variable} (environment) should be ")
    assert problem.endswith(f", not {value!r}")


def test_zero_retries_and_zero_grace_are_allowed():
    settings = load_settings(default_max_retries=0, timeout_grace_seconds=0, shutdown_grace_seconds=0)
    assert (settings.default_max_retries, settings.timeout_grace_seconds, settings.shutdown_grace_seconds) == (0, 0, 0)


def test_the_heartbeat_must_be_shorter_than_the_lease(monkeypatch):
    monkeypatch.setenv("ORPHAN_THRESHOLD_SEC", "30")
    assert problems_of(worker_heartbeat_interval_seconds=200) == [
        "ORPHAN_THRESHOLD_SEC (environment) should be greater than heartbeat_interval_seconds, which is 30, not '30'",
        "DAGMASTER_WORKER_LOST_AFTER_SECONDS (default) should be greater than worker_heartbeat_interval_seconds, "
        "which is 200, not 55",
    ]


@pytest.mark.parametrize("key", ["log_levle", "DAGMASTER_LOG_LEVEL", "loglevel"])
def test_an_unknown_key_in_the_toml_file_gets_a_suggestion(key):
    Path("dagmaster.toml").write_text(f"{key} = 'info'\n")
    assert problems_of() == [f"{key} (dagmaster.toml) is not a setting; did you mean log_level?"]


def test_an_unknown_key_without_a_near_match_gets_no_suggestion():
    Path("dagmaster.toml").write_text("[zzz]\nx = 1\n")
    assert problems_of() == ["zzz (dagmaster.toml) is not a setting"]


def test_an_unknown_argument_is_refused():
    assert problems_of(pol_interval_seconds=1) == [
        "pol_interval_seconds (argument) is not a setting; did you mean poll_interval_seconds?"
    ]


def test_an_invalid_toml_file_is_named_with_the_line():
    Path("dagmaster.toml").write_text("log_level = 'info'\nlog_format json\n")
    (problem,) = problems_of()
    assert problem.startswith("dagmaster.toml: ") and "line 2" in problem


@pytest.mark.parametrize("name", [".env", "dagmaster.toml"])
def test_a_binary_file_is_named(name):
    Path(name).write_bytes(b"\xff\xfe\x00")
    assert problems_of()[0].startswith(f"{name} cannot be read: ")


def test_settings_are_immutable():
    with pytest.raises(ValidationError, match="frozen"):
        load_settings().max_nodes = 1  # type: ignore[misc]


def test_templates_see_only_variables_with_the_prefix(monkeypatch):
    monkeypatch.setenv("DAGMASTER_VAR_REGION", "eu")
    monkeypatch.setenv("SECRET_KEY", "hush")
    assert load_settings().template_env() == {"REGION": "eu"}
    assert load_settings(template_env_prefix="SECRET_").template_env() == {"KEY": "hush"}


def test_an_empty_template_prefix_is_refused():
    assert "template_env_prefix (argument)" in problems_of(template_env_prefix="")[0]
