"""A rectangle of pixels."""

from pydantic import BaseModel


class Part(BaseModel, frozen=True):
    column: int
    row: int
    width: int
    height: int
