"""STAC documents: items and collections of rasters."""
