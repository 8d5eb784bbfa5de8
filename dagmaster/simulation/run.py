"""Run the real engine in simulated worlds, by seed; the same seed is the same world."""

from random import Random

from dagmaster.simulation.cases import random_case
from dagmaster.simulation.graphs import random_blueprint
from dagmaster.simulation.ground import Fault
from dagmaster.simulation.world import Weather, World


def simulate(seed: int) -> World:
    rng = Random(seed)
    case = random_case(random_blueprint(rng), rng)
    faults = frozenset(f for f in Fault if rng.random() < 0.4)
    weather = Weather(faults, rng.choice((0, 60, 150, 300)), rng.choice((2, 3, 2000)), rng.choice((None, 30.0)))
    world = World(case, weather, Random(seed + 1))
    world.run()
    return world
