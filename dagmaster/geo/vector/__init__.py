"""Vector layers: read any accepted format, clean them, and write GeoParquet, PMTiles and PostGIS tables."""
