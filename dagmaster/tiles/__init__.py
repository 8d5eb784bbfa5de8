"""Tiles of rasters, by TiTiler. Needs the extra `serve`; the web application loads it when somebody asks for a tile."""

from dagmaster import geo

assert geo  # Before numpy: it decides how many threads that starts.
