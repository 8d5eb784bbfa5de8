"""The configured engine and limits."""

from dagmaster.data.engine import Limits, folder_of, folder_url, location_of
from dagmaster.settings import Settings, load_settings


def data_url(settings: Settings) -> str:
    """Default: the data service of the data folder, which all processes on it share."""
    if settings.data_url:
        return settings.data_url.get_secret_value()
    return folder_url(settings.data_dir / "tables", "service")


def limits_of(settings: Settings) -> Limits:
    megabytes = settings.data_max_memory_mb
    return Limits(
        memory_bytes=megabytes * 1024 * 1024 if megabytes else None,
        seconds=settings.data_max_query_seconds,
        rows_read=settings.data_max_rows_read,
        tables=settings.data_max_tables,
    )


def url_at(location: str) -> str:
    """The URL to open a location: the configured one if it matches, or a folder shared with other processes."""
    url = data_url(load_settings())
    if location_of(url) == location:
        return url
    return folder_url(folder_of(location), "service") if location.startswith("chdb:") else location
