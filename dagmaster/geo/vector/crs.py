"""The CRS of a layer, and its transformation to longitude and latitude."""

import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError, ProjError
from pyproj.transformer import TransformerGroup

from dagmaster.geo.errors import VectorRejected
from dagmaster.geo.validation import CrsSource

WGS84: Final = "EPSG:4326"
# A less accurate transformation causes a warning.
EXACT_METRES: Final = 1.0


@dataclass(frozen=True, slots=True)
class ResolvedCrs:
    """`to_wgs84` is None if the coordinates are already longitude and latitude."""

    name: str
    source: CrsSource
    to_wgs84: Transformer | None
    accuracy_metres: float | None
    warnings: tuple[str, ...]

    def transform(self, coordinates: Any) -> Any:
        """Transform n points; those off the globe become infinite."""
        assert self.to_wgs84 is not None
        return np.column_stack(self.to_wgs84.transform(coordinates[:, 0], coordinates[:, 1]))


def parse_crs(text: str, name: str) -> CRS:
    try:
        return CRS.from_user_input(text)
    except CRSError as error:
        raise VectorRejected(f"{name}: {text[:80]!r} is no CRS that PROJ knows; write it as EPSG:32633") from error


def crs_name(crs: CRS) -> str:
    """`EPSG:32633` if an authority lists it, its WKT otherwise."""
    authority = crs.to_authority(min_confidence=70)
    return ":".join(authority) if authority else crs.to_wkt()


def resolve_crs(in_file: str | None, assigned: str | None) -> ResolvedCrs:
    """Raises VectorRejected if there is none, or two that differ."""
    own = parse_crs(in_file, "the CRS of the file") if in_file else None
    chosen = parse_crs(assigned, "assigned_crs") if assigned else None
    if own is None and chosen is None:
        raise VectorRejected("the file has no CRS and none was given; pass assigned_crs, such as EPSG:4326")
    if own is not None and chosen is not None and not own.equals(chosen, ignore_axis_order=True):
        raise VectorRejected(
            f"the file is in {crs_name(own)}, but {crs_name(chosen)} was given; correct one of the two"
        )
    if own is None:
        assert chosen is not None
        warning = f"the file has no CRS: {crs_name(chosen)} is assigned, as given"
        return _with_transformation(chosen, CrsSource.ASSIGNED, warning)
    return _with_transformation(own, CrsSource.FILE if chosen is None else CrsSource.CONFIRMED)


def _with_transformation(crs: CRS, source: CrsSource, *doubts: str) -> ResolvedCrs:
    flat = crs.to_2d()
    if flat.equals(CRS.from_user_input(WGS84), ignore_axis_order=True):
        return ResolvedCrs(crs_name(crs), source, None, 0.0, doubts)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # A missing grid is reported below.
            group = TransformerGroup(flat, WGS84, always_xy=True)
        transformer = group.transformers[0]
    except (ProjError, IndexError) as error:
        raise VectorRejected(
            f"coordinates in {crs_name(crs)} cannot be transformed to longitude and latitude"
        ) from error
    accuracy = transformer.accuracy if transformer.accuracy >= 0 else None
    return ResolvedCrs(crs_name(crs), source, transformer, accuracy, (*doubts, *_doubts(crs, accuracy, group)))


def _doubts(crs: CRS, accuracy: float | None, group: TransformerGroup) -> list[str]:
    if accuracy is None:
        return [f"PROJ does not say how exact the transformation from {crs_name(crs)} is"]
    if accuracy <= EXACT_METRES:
        return []
    remedy = "; a grid file that is not installed would make it more exact" if not group.best_available else ""
    return [f"the transformation from {crs_name(crs)} is exact to {accuracy:g} m{remedy}"]
