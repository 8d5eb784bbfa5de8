"""The settings: the only place that reads the environment, `.env` and `dagmaster.toml`."""

import difflib
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from dagmaster.errors import Misconfigured

PREFIX = "DAGMASTER_"

# Names without the prefix that are accepted too, the first found wins (C-59).
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
}


def _split_at_commas(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _postgres_address(url: SecretStr) -> SecretStr:
    if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("must be a PostgreSQL address, like postgresql://user:password@host:5432/database")
    return url


def _default_log_dir() -> Path:
    return Path.home() / ".dagmaster" / "logs" if sys.platform == "darwin" else Path("/var/log/dagmaster")


Names = Annotated[list[str], BeforeValidator(_split_at_commas)]
Lowercase = BeforeValidator(_lower)
PostgresAddress = Annotated[SecretStr, AfterValidator(_postgres_address)]


class Settings(BaseSettings):
    """What can be set; each name in upper case with the prefix DAGMASTER_ is its environment variable."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    database_url: PostgresAddress | None = None
    postgres_host: str | None = None
    postgres_port: Annotated[int, Field(ge=1, le=65535)] = 5432
    postgres_db: str = "dagmaster"
    postgres_user: str | None = None
    postgres_password: SecretStr | None = None
    data_dir: Path = Path(".dagmaster")
    auto_migrate: bool = True

    workflows_dir: Path = Path("workflows")
    handlers: Names = []
    run_mode: Annotated[Literal["orchestrator", "worker", "gateway"], Lowercase] | None = None
    worker_queue: str | None = None
    worker_queues: Names = []
    worker_concurrency: PositiveInt = 16

    poll_interval_seconds: PositiveFloat = 1.0
    heartbeat_interval_seconds: PositiveFloat = 30
    orphan_threshold_seconds: PositiveFloat = 120
    orphan_scan_interval_seconds: PositiveFloat = 60
    worker_heartbeat_interval_seconds: PositiveFloat = 30
    worker_lost_after_seconds: PositiveFloat = 90
    zombie_after_seconds: PositiveFloat = 86_400

    default_task_timeout_seconds: PositiveFloat = 3600
    default_job_timeout_seconds: PositiveFloat = 86_400
    dispatch_timeout_seconds: PositiveFloat | None = None
    timeout_grace_seconds: NonNegativeFloat = 5
    default_max_retries: NonNegativeInt = 3
    shutdown_grace_seconds: NonNegativeFloat = 30

    template_env_prefix: Annotated[str, Field(min_length=1)] = "DAGMASTER_VAR_"
    max_fan_out: PositiveInt = 1_000_000
    max_output_bytes: PositiveInt = 16 * 1024 * 1024
    max_nodes: PositiveInt = 5000

    log_level: Annotated[Literal["debug", "info", "warning", "error", "critical"], Lowercase] = "info"
    log_format: Annotated[Literal["text", "json"], Lowercase] = "text"
    log_dir: Path = Field(default_factory=_default_log_dir)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, *(InitSettingsSource(settings_cls, place.values) for place in _places())

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("worker_queue") and "worker_queues" not in values:
            return {**values, "worker_queues": [values["worker_queue"]]}
        return values

    @model_validator(mode="after")
    def _check_intervals(self) -> Self:
        for beat, limit in (
            ("heartbeat_interval_seconds", "orphan_threshold_seconds"),
            ("worker_heartbeat_interval_seconds", "worker_lost_after_seconds"),
        ):
            if getattr(self, beat) >= getattr(self, limit):
                raise ValueError(
                    f"{beat} ({getattr(self, beat):g}) must be smaller than {limit} ({getattr(self, limit):g})"
                )
        return self

    def database_dsn(self) -> str | None:
        """The address of the database, from the URL or else from the POSTGRES_ parts; None means the embedded server."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        if self.postgres_host is None:
            return None
        user = quote(self.postgres_user or "", safe="")
        password = quote(self.postgres_password.get_secret_value() if self.postgres_password else "", safe="")
        login = f"{user}:{password}@" if password else f"{user}@" if user else ""
        return f"postgresql://{login}{quote(self.postgres_host, safe='')}:{self.postgres_port}/{quote(self.postgres_db, safe='')}"

    def template_env(self) -> dict[str, str]:
        """What `{{ env.NAME }}` may see: the variables with the prefix, which is left off."""
        prefix = self.template_env_prefix
        return {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class _Place:
    """Values found in one place by setting, and what each setting is called there."""

    title: str
    values: dict[str, Any]
    names: dict[str, str]


def _places() -> Iterator[_Place]:
    """Where settings are looked for, the strongest first."""
    yield _variables("environment", os.environ)
    dotenv = Path(".env")
    if dotenv.is_file():
        yield _variables(".env", dotenv_values(dotenv))
    toml = Path("dagmaster.toml")
    if toml.is_file():
        values = _read_toml(toml)
        yield _Place(toml.name, values, {name: name for name in values})


def _variables(title: str, variables: Mapping[str, str | None]) -> _Place:
    names: dict[str, str] = {}
    for setting in Settings.model_fields:
        for name in (PREFIX + setting.upper(), *ALIASES.get(setting, ())):
            if variables.get(name):  # set to nothing is not set, as compose files do it
                names.setdefault(setting, name)
    return _Place(title, {setting: variables[name] for setting, name in names.items()}, names)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise Misconfigured(f"{path} cannot be read: {error}") from error


def load_settings(**overrides: Any) -> Settings:
    """The settings from the arguments, the environment, `.env`, `dagmaster.toml` and the defaults, in this order."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        problems = [_describe(problem, overrides) for problem in error.errors()]
    raise Misconfigured("\n".join(dict.fromkeys(problems)))


def _describe(problem: ErrorDetails, overrides: Mapping[str, Any]) -> str:
    if not problem["loc"]:
        return problem["msg"].removeprefix("Value error, ")
    setting = str(problem["loc"][0])
    called = _origin(setting, overrides)
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(setting, Settings.model_fields, n=1)
        return f"{called} is not a setting" + (f"; did you mean {near[0]}?" if near else "")
    reason = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{called} is wrong: {reason}"


def _origin(setting: str, overrides: Mapping[str, Any]) -> str:
    if setting in overrides:
        return f"{setting} (given by the caller)"
    for place in _places():
        if setting in place.names:
            return f"{place.names[setting]} ({place.title})"
    return setting
