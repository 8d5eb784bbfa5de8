"""Hexagons of the H3 grid: statistics of rasters and vector layers by cell."""
