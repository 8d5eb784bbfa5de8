"""Handlers that synchronise the catalogue with the versions of assets and their files.

Load them with `DAGMASTER_HANDLERS=dagmaster.handlers.catalogue`; they need the extra `geo` and a database.
"""

from dagmaster.handlers.catalogue import repair

__all__ = ["repair"]
