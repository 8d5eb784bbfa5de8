"""Vector layers: read any of the accepted formats, clean them, and write GeoParquet, PMTiles and PostGIS tables."""
