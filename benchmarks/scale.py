"""How much is measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """`repetitions` are of whole measurements; floor and product take turns, so that both see the same machine."""

    repetitions: int
    rounds: int
    latency_jobs: int
    chain_steps: int
    fan_sizes: tuple[int, ...]
    throughput_jobs: int
    warm_up_jobs: int
    idle_nodes: int
    idle_seconds: float
    large_outputs: tuple[int, int]  # how many, of how many bytes
    large_mail: tuple[int, int]
    large_submissions: tuple[int, int]
    polygons: int
    raster_side: int  # in pixels of four bytes
    served_raster_side: int  # in pixels
    catalogue_items: int
    served_requests: int
    large_raster_side: int  # in pixels of four bytes
    large_layer_features: int


FULL = Scale(
    repetitions=5,
    rounds=40,
    latency_jobs=40,
    chain_steps=40,
    fan_sizes=(1_000, 10_000, 100_000),
    throughput_jobs=1_000,
    warm_up_jobs=50,
    idle_nodes=10_000,
    idle_seconds=20.0,
    large_outputs=(80, 15_000_000),
    large_mail=(1_100, 600_000),
    large_submissions=(300, 3_900_000),
    polygons=100_000,
    raster_side=6_000,
    served_raster_side=8192,
    catalogue_items=20_000,
    served_requests=300,
    large_raster_side=50_000,
    large_layer_features=2_000_000,
)
QUICK = Scale(
    repetitions=2,
    rounds=10,
    latency_jobs=5,
    chain_steps=10,
    fan_sizes=(100, 1_000),
    throughput_jobs=100,
    warm_up_jobs=10,
    idle_nodes=1_000,
    idle_seconds=2.0,
    large_outputs=(8, 2_000_000),
    large_mail=(50, 100_000),
    large_submissions=(20, 400_000),
    polygons=2_000,
    raster_side=2_500,
    served_raster_side=1024,
    catalogue_items=1_000,
    served_requests=20,
    large_raster_side=2_500,
    large_layer_features=20_000,
)
