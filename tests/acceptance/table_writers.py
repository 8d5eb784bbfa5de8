"""Tasks that make tables of every scope as long as they run: they are killed meanwhile."""

from dagmaster import task
from dagmaster.data import Object, get_data_context

LOG = "log"
STEPS = 8
# In the entry of the table, and in a table from the beginning.
FEW, MANY = 1000, 10_000


@task
async def write(number: int) -> Object:
    context = get_data_context()
    log = await context.open(LOG)
    for step in range(STEPS):
        await log.append({"number": [number], "step": [step]}, token=f"{number}:{step}")
        await context.create_object_from_value({"x": list(range(MANY))})
        few = await context.create_object_from_value({"x": list(range(FEW))})
        await few.select("x").materialize(scope="job")
    return await context.create_object_from_value({"x": list(range(number, number + MANY))})
