"""GeoTIFFs: read untrusted files, validate them, and convert them to cloud-optimised files."""
