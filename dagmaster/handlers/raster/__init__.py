"""Handlers of rasters: from files in storage to cloud-optimised files and their catalogue entries.

Load them with `DAGMASTER_HANDLERS=dagmaster.handlers.raster`; they need the extra `geo`.
"""

from dagmaster.handlers.raster import cog, containers, fathom, mount, stac, tiles, tools
from dagmaster.handlers.raster.stac import MAX_ITEMS

__all__ = ["MAX_ITEMS", "cog", "containers", "fathom", "mount", "stac", "tiles", "tools"]
