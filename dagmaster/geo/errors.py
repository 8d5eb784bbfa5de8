"""The exceptions of the geospatial functions."""

from dagmaster.errors import Invalid


class UnreadableRaster(Invalid):
    """The file is not a readable raster."""


class RasterRejected(Invalid):
    """The raster cannot be used."""


class ModelRejected(Invalid):
    """The model cannot be run on this raster."""


class UnreadableVector(Invalid):
    """The file has no readable vector layer."""


class VectorRejected(Invalid):
    """The layer cannot be used."""
