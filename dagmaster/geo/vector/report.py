"""The result of reading a layer: its properties, the repairs, and why it may be unusable."""

from pydantic import BaseModel, Field

from dagmaster.geo.errors import VectorRejected
from dagmaster.geo.validation import CrsSource, Outcome
from dagmaster.geo.vector.columns import Column
from dagmaster.geo.vector.formats import Format

Box = tuple[float, float, float, float]


class FeatureCounts(BaseModel):
    """`read` counts all features of the file. `repaired` and `flattened` ones are kept, the others are left out."""

    read: int = 0
    kept: int = 0
    repaired: int = 0
    flattened: int = Field(default=0, description="Had heights or measures, which are dropped.")
    without_geometry: int = 0
    unreadable: int = Field(default=0, description="Curves and other geometries that GEOS does not know.")
    collapsed: int = Field(default=0, description="Nothing of their dimension was left by the repair.")
    off_the_globe: int = 0
    wide: int = Field(default=0, description="Kept, but wider than 180 degrees.")


class VectorReport(BaseModel, frozen=True):
    outcome: Outcome
    problems: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    format: Format
    layer: str
    encoding: str
    crs: str
    crs_source: CrsSource
    accuracy_metres: float | None = Field(description="Of the transformation to EPSG:4326, as PROJ estimates it.")
    features: FeatureCounts
    geometry_types: list[str]
    bbox: Box | None
    columns: list[Column]

    def check(self) -> "VectorReport":
        """Raises VectorRejected with all problems."""
        if self.outcome is Outcome.REJECTED:
            raise VectorRejected("; ".join(self.problems))
        return self


def warnings_about(counts: FeatureCounts) -> list[str]:
    sentences = (
        (counts.repaired, "invalid geometries were repaired"),
        (counts.flattened, "geometries had heights or measures, which are dropped"),
        (counts.without_geometry, "features without a geometry are left out"),
        (counts.unreadable, "features are left out: their geometries cannot be read"),
        (counts.collapsed, "features are left out: nothing of their geometries is left by the repair"),
        (counts.off_the_globe, "features are left out: they are nowhere on the globe in this CRS"),
        (counts.wide, "features are wider than 180 degrees: if they cross the antimeridian, split them there"),
    )
    return [f"{count} {sentence}" for count, sentence in sentences if count]
