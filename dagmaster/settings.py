"""The settings: the only place that reads the environment, `.env` and `dagmaster.toml`."""

import difflib
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from dagmaster.errors import Misconfigured

PREFIX = "DAGMASTER_"

# Aliases without the prefix; the first one that is set wins.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "database_url": ("DATABASE_URL",),
    "postgres_host": ("POSTGRES_HOST",),
    "postgres_port": ("POSTGRES_PORT",),
    "postgres_db": ("POSTGRES_DB",),
    "postgres_user": ("POSTGRES_USER",),
    "postgres_password": ("POSTGRES_PASSWORD",),
    "worker_queue": ("WORKER_QUEUE", "DAG_WORKER_QUEUE"),
    "poll_interval_seconds": ("ORCHESTRATOR_POLL_INTERVAL",),
    "heartbeat_interval_seconds": ("HEARTBEAT_INTERVAL_SEC",),
    "orphan_threshold_seconds": ("ORPHAN_THRESHOLD_SEC",),
    "orphan_scan_interval_seconds": ("ORPHAN_SCAN_INTERVAL_SEC",),
    "worker_heartbeat_interval_seconds": ("WORKER_HEARTBEAT_INTERVAL",),
    "default_task_timeout_seconds": ("DEFAULT_TASK_TIMEOUT_SEC", "WORKER_TASK_TIMEOUT"),
    "default_job_timeout_seconds": ("JOB_DEFAULT_TIMEOUT",),
    "default_max_retries": ("WORKER_MAX_RETRIES",),
    "run_mode": ("RUN_MODE",),
    "log_level": ("LOG_LEVEL",),
    "log_format": ("LOG_FORMAT",),
    "url": ("ORCHESTRATOR_URL",),
    "worker_url": ("WORKER_URL",),
    "external_b2c_connection_string": ("EXTERNAL_B2C_CONNECTION_STRING",),
    "allow_destructive_bootstrap": ("ALLOW_DESTRUCTIVE_BOOTSTRAP",),
}


def _split_at_commas(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _default_log_dir() -> Path:
    return Path("~/.dagmaster/logs") if sys.platform == "darwin" else Path("/var/log/dagmaster")


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Grace = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Folder = Annotated[Path, AfterValidator(Path.expanduser)]
Names = Annotated[list[str], BeforeValidator(_split_at_commas)]
Lowercase = BeforeValidator(_lower)


class Settings(BaseSettings):
    """All settings. The environment variable of each is its name in uppercase with the prefix DAGMASTER_."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    postgres_host: str | None = None
    postgres_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    postgres_db: str | None = None
    postgres_user: str | None = None
    postgres_password: SecretStr | None = None
    database_url: SecretStr | None = None
    data_dir: Folder = Path(".dagmaster")
    auto_migrate: bool | None = None

    workflows_dir: Folder = Path("workflows")
    export_workflow: str = "adf_export"
    handlers: Names = []
    task_modules: Names = []
    run_mode: Annotated[Literal["orchestrator", "worker", "api", "gateway", "tiles"], Lowercase] | None = None
    worker_queue: str | None = None
    worker_queues: Names = []
    worker_concurrency: PositiveInt = 16
    worker_health_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    worker_health_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"

    poll_interval_seconds: Seconds = 1.0
    heartbeat_interval_seconds: Seconds = 30
    orphan_threshold_seconds: Seconds = 120
    orphan_scan_interval_seconds: Seconds = 60
    worker_heartbeat_interval_seconds: Seconds = 30
    worker_lost_after_seconds: Seconds = 55  # so that every loss is detected within a minute
    zombie_after_seconds: Seconds = 86_400

    default_task_timeout_seconds: Seconds = 3600
    default_job_timeout_seconds: Seconds = 86_400
    dispatch_timeout_seconds: Seconds | None = None
    timeout_grace_seconds: Grace = 5
    default_max_retries: NonNegativeInt = 3
    max_worker_deaths: PositiveInt = 5
    shutdown_grace_seconds: Grace = 30
    stop_within_seconds: Seconds = 2

    url: str | None = None
    api_key: SecretStr | None = None
    api_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    api_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    api_pool_size: PositiveInt = 10
    public_url: str | None = None
    gateway_url: str | None = None
    cors_origins: Names = []
    secret_key: Annotated[SecretStr, Field(min_length=16)] | None = None
    enable_handler_test: bool = False
    allow_destructive_bootstrap: bool = False

    gateway_database_url: SecretStr | None = None
    gateway_timeout_seconds: Seconds = 30
    gateway_rate_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10
    gateway_burst: PositiveInt = 50
    worker_url: str | None = None

    external_b2c_connection_string: SecretStr | None = None

    storage_bronze: str | None = None
    storage_silver: str | None = None
    storage_external: str | None = None
    storage_mount: str | None = None
    storage_folders: Names = []
    storage_allowed_hosts: Names = []

    raster_processes: PositiveInt | None = None
    raster_memory_mb: Annotated[int, Field(ge=300)] = 600
    raster_parallel_above_mb: NonNegativeInt = 256

    callback_allowed_hosts: Names = []
    callback_allow_http: bool = False
    callback_max_attempts: PositiveInt = 12
    callback_timeout_seconds: Seconds = 10

    stall_after_seconds: Seconds = 300
    stuck_after_seconds: Seconds = 1800
    max_queue_depth: PositiveInt = 100_000
    resume_queue_depth: PositiveInt | None = None

    retention_days: Annotated[float, Field(gt=0)] | None = None
    archive_dir: Folder | None = None

    data_url: SecretStr | None = None
    data_retention_days: Annotated[float, Field(ge=0)] = 7
    data_max_memory_mb: PositiveInt | None = None
    data_max_query_seconds: Seconds | None = None
    data_max_rows_read: PositiveInt | None = None
    data_max_tables: PositiveInt = 10_000

    template_env_prefix: Annotated[str, Field(min_length=1)] = "DAGMASTER_VAR_"
    secret_env: Names = []
    max_fan_out: PositiveInt = 1_000_000
    max_output_bytes: PositiveInt = 16 * 1024 * 1024
    max_fan_in_bytes: PositiveInt = 64 * 1024 * 1024
    max_result_bytes: PositiveInt = 64 * 1024 * 1024
    max_batch_bytes: PositiveInt = 16 * 1024 * 1024
    max_nodes: PositiveInt = 5000
    max_body_bytes: PositiveInt = 4 * 1024 * 1024

    log_level: Annotated[Literal["debug", "info", "warning", "error", "critical"], Lowercase] = "info"
    log_format: Annotated[Literal["text", "json"], Lowercase] = "text"
    log_dir: Folder = Field(default_factory=_default_log_dir)
    log_url: str | None = None
    log_max_bytes: PositiveInt = 10 * 1024 * 1024

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # Not the library's own sources: they forget where a value came from, and reject unrelated names in `.env`.
        return init_settings, *(InitSettingsSource(settings_cls, place.values) for place in _places())

    @field_validator("database_url")
    @classmethod
    def _name_the_database(cls, url: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return _compose_url(info.data) if url is None else _be_a_database_url(url)

    @field_validator("gateway_database_url", "external_b2c_connection_string")
    @classmethod
    def _name_another_database(cls, url: SecretStr | None) -> SecretStr | None:
        return None if url is None else _be_a_database_url(url)

    @field_validator("worker_queues")
    @classmethod
    def _consume_the_default_queue(cls, queues: list[str], info: ValidationInfo) -> list[str]:
        default = info.data.get("worker_queue")
        return queues or ([default] if default else [])

    @field_validator("orphan_threshold_seconds", "worker_lost_after_seconds")
    @classmethod
    def _outlast_a_heartbeat(cls, limit: float, info: ValidationInfo) -> float:
        beat = "heartbeat_interval_seconds"
        if info.field_name == "worker_lost_after_seconds":
            beat = "worker_heartbeat_interval_seconds"
        if limit <= info.data.get(beat, 0):
            raise ValueError(f"should be greater than {beat}, which is {info.data[beat]:g}")
        return limit

    @field_validator("resume_queue_depth")
    @classmethod
    def _resume_below_the_limit(cls, depth: int | None, info: ValidationInfo) -> int:
        limit: int = info.data.get("max_queue_depth", 1)
        if depth is None:
            return max(limit * 4 // 5, 1)
        if depth > limit:
            raise ValueError(f"should not be greater than max_queue_depth, which is {limit}")
        return depth

    @field_validator("url", "public_url", "gateway_url", "worker_url")
    @classmethod
    def _be_a_web_address(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("should look like https://dagmaster.example.com")
        return url.rstrip("/") if url else None

    def database_dsn(self) -> str | None:
        """The URL of the database with its password; None means the embedded server."""
        return self.database_url.get_secret_value() if self.database_url else None

    def gateway_dsn(self) -> str | None:
        """The URL of the database for the gateway, whose role can only read."""
        url = self.gateway_database_url or self.database_url
        return url.get_secret_value() if url else None

    def external_dsn(self) -> str | None:
        """The URL of the database that publishes layers outside; None if there is none."""
        url = self.external_b2c_connection_string
        return url.get_secret_value() if url else None

    def chosen_secret(self) -> bytes | None:
        """The secret that the fleet's keys are derived from; None if the fleet generates its own."""
        return self.secret_key.get_secret_value().encode() if self.secret_key else None

    def template_env(self) -> dict[str, str]:
        """The variables that `{{ env.NAME }}` can read: those with the prefix, without the prefix."""
        prefix = self.template_env_prefix
        return {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}


def _be_a_database_url(url: SecretStr) -> SecretStr:
    if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("should look like postgresql://user:password@host:5432/database")
    return url


def _compose_url(parts: Mapping[str, Any]) -> SecretStr | None:
    host, password = parts.get("postgres_host"), parts.get("postgres_password")
    other_parts = [name for name in ("port", "db", "user", "password") if parts.get(f"postgres_{name}")]
    if host is None and other_parts:
        # Running on the embedded server instead would look like data loss.
        raise ValueError(f"or POSTGRES_HOST must be set, because POSTGRES_{other_parts[0].upper()} is set")
    if host is None:
        return None
    login = quote(parts.get("postgres_user") or "", safe="")
    if password:
        login += ":" + quote(password.get_secret_value(), safe="")
    database = quote(parts.get("postgres_db") or "dagmaster", safe="")
    address = f"{quote(host, safe='')}:{parts.get('postgres_port') or 5432}/{database}"
    return SecretStr(f"postgresql://{login}@{address}" if login else f"postgresql://{address}")


@dataclass(frozen=True)
class _Place:
    """The values from one source by setting, and the name of each setting in that source."""

    title: str
    values: dict[str, Any]
    names: dict[str, str]


def _places() -> Iterator[_Place]:
    """The sources of settings, highest precedence first."""
    yield _variables("environment", os.environ)
    yield _variables(".env", dotenv_values(stream=StringIO(_read(Path(".env")))))
    toml = Path("dagmaster.toml")
    try:
        values = tomllib.loads(_read(toml))
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{toml}: {error}") from error
    yield _Place(toml.name, values, {name: name for name in values})


def _variables(title: str, variables: Mapping[str, str | None]) -> _Place:
    names: dict[str, str] = {}
    for setting in Settings.model_fields:
        for name in (PREFIX + setting.upper(), *ALIASES.get(setting, ())):
            if variables.get(name):  # an empty value is unset: compose files pass on variables that they do not have
                names.setdefault(setting, name)
    return _Place(title, {setting: variables[name] for setting, name in names.items()}, names)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} cannot be read: {error}") from error


def load_settings(**overrides: Any) -> Settings:
    """The settings from the arguments, the environment, `.env`, `dagmaster.toml` and the defaults, in this order."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        problems = [_describe(problem, overrides) for problem in error.errors()]
    raise Misconfigured("\n".join(problems))


def _describe(problem: ErrorDetails, overrides: Mapping[str, Any]) -> str:
    setting = str(problem["loc"][0])
    origin = _origin(setting, overrides)
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(setting.lower().removeprefix(PREFIX.lower()), Settings.model_fields, n=1)
        return f"{origin} is not a setting" + (f"; did you mean {near[0]}?" if near else "")
    reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "should")
    is_secret = SecretStr.__name__ in str(Settings.model_fields[setting].annotation)
    actual = "" if is_secret else f", not {problem['input']!r}"
    return f"{origin} {reason}{actual}"


def _origin(setting: str, overrides: Mapping[str, Any]) -> str:
    if setting in overrides:
        return f"{setting} (argument)"
    for place in _places():
        if setting in place.names:
            return f"{place.names[setting]} ({place.title})"
    return f"{PREFIX}{setting.upper()} (default)"
