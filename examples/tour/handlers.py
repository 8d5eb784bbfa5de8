"""Handlers of the tour: they simulate a small satellite ground segment, with a few seconds of invented work."""

import random
import time
from typing import Any

from dagmaster.handlers import HandlerContext, Permanent, handler


@handler("tour.find")
def find_scenes(ctx: HandlerContext) -> dict[str, Any]:
    """Simulate a catalogue: return this number of scenes in an area."""
    west, south, east, north = ctx.params["bbox"]
    step = (east - west) / ctx.params["scenes"]
    ctx.logger.info("querying the catalogue for %s", ctx.params["bbox"])
    scenes = [
        {
            "id": f"S2A-{1000 + number}",
            "cloud": random.Random(number).randint(0, 60),
            "bbox": [round(west + number * step, 3), south, round(west + (number + 1) * step, 3), north],
        }
        for number in range(ctx.params["scenes"])
    ]
    return {"scenes": scenes, "bbox": ctx.params["bbox"]}


@handler("tour.process")
def process_scene(ctx: HandlerContext) -> dict[str, Any]:
    """Run some steps with progress; the first attempt at a few scenes fails, as downloads do."""
    scene = ctx.params["scene"]
    if ctx.retry_count == 0 and scene["cloud"] % 9 == 4:
        raise ConnectionError(f"the download of {scene['id']} broke off after 31 of 112 MB")
    steps = ("download", "calibrate", "reproject", "write")
    for number, step in enumerate(steps, 1):
        time.sleep(random.Random(scene["id"] + step).uniform(0.05, 0.4))
        ctx.logger.info("%s: %s done", scene["id"], step)
        ctx.progress(number, len(steps), step)
    return {"scene": scene["id"], "bbox": scene["bbox"], "pixels": 120_560_400}


@handler("tour.mosaic")
def mosaic(ctx: HandlerContext) -> dict[str, Any]:
    for percent in range(0, 101, 20):
        time.sleep(0.15)
        ctx.progress(percent, 100, "blending")
        ctx.logger.info("blended %d %%", percent)
    return {
        "href": "s3://mosaics/2026-11-16.tif",
        "blob_path": "mosaics/2026-11-16.tif",
        "bbox": ctx.params["bbox"],
        "scenes": len(ctx.params["scenes"]),
    }


@handler("tour.check")
def check(ctx: HandlerContext) -> dict[str, Any]:
    time.sleep(0.4)
    if ctx.params.get("is_broken"):
        raise Permanent("the mosaic has 12 % empty pixels in the north-east; the limit is 5 %")
    return {"empty_percent": 0.8, "is_good": True}


@handler("tour.publish")
def publish(ctx: HandlerContext) -> dict[str, Any]:
    time.sleep(0.3)
    return {"published": True, "url": "https://example.org/mosaics/2026-11-16"}
