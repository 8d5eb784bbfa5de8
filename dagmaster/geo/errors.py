"""The exceptions of the geospatial functions."""

from dagmaster.errors import Invalid


class UnreadableRaster(Invalid):
    """The file is not a raster that can be read."""


class RasterRejected(Invalid):
    """The raster cannot be used."""
