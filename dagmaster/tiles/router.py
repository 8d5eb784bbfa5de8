"""All the routes that need the libraries of tiles."""

from typing import Final

from fastapi import APIRouter

from dagmaster.tiles import rasters, vectors

router: Final = APIRouter()
router.include_router(vectors.router)
router.include_router(rasters.router)
