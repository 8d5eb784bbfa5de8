"""All routes that need the tile libraries."""

from typing import Final

from fastapi import APIRouter

from dagmaster.tiles import rasters, vectors

router: Final = APIRouter()
router.include_router(vectors.router)
router.include_router(rasters.router)
