"""The Hilbert curve over the globe: points close on the curve are close on the globe."""

from typing import Any, Final

import numpy as np

# 31 bits per coordinate: two centimetres at the equator, and the distance fits into 64 bits.
BITS: Final = 31


def distances(longitudes: Any, latitudes: Any) -> Any:
    """The position of each point on the curve, as uint64. Points beyond the globe are clamped to its edge."""
    x, y = _cells(longitudes, -180.0, 360.0), _cells(latitudes, -90.0, 180.0)
    distance = np.zeros(len(x), np.uint64)
    full = np.uint64(2**BITS - 1)
    for bit in range(BITS - 1, -1, -1):
        side, shift = np.uint64(1 << bit), np.uint64(bit)
        right, upper = (x & side) >> shift, (y & side) >> shift
        distance += (side * side) * ((np.uint64(3) * right) ^ upper)
        # Lower quadrants are rotated; right ones are mirrored as well.
        is_lower = upper == 0
        mirrored = is_lower & (right == 1)
        x, y = np.where(mirrored, full - x, x), np.where(mirrored, full - y, y)
        x, y = np.where(is_lower, y, x), np.where(is_lower, x, y)
    return distance


def _cells(degrees: Any, lowest: float, extent: float) -> Any:
    scaled = (np.asarray(degrees, np.float64) - lowest) / extent * 2**BITS
    return np.clip(scaled, 0, 2**BITS - 1).astype(np.uint64)
