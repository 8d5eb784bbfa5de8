"""Tiles of rasters, by TiTiler. Needs the extra `serve`; the web application loads it when somebody asks for a tile."""

import logging

from dagmaster import geo

assert geo  # Before numpy: it decides how many threads that starts.
logging.getLogger("numexpr").setLevel(logging.WARNING)  # Loaded by TiTiler, it tells how many threads it has.
