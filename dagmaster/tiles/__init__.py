"""Tiles of rasters, by TiTiler. Needs the extra `serve`; the web application loads it with the first tile."""

import logging

from dagmaster import geo

assert geo  # Imported before numpy: it sets the number of its threads.
logging.getLogger("numexpr").setLevel(logging.WARNING)  # Loaded by TiTiler; it logs its number of threads.
