"""GeoTIFFs: read them with distrust, validate them, and make cloud-optimised files of them."""
