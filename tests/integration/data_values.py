"""Values of every type for tables."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dagmaster.data import DataContext, Object

VALUES = {
    "bool": [True, False],
    "int": [1, -(2**63)],
    "large": pa.array([2**63, 1], pa.uint64()),
    "small": pa.array([-128, 127], pa.int8()),
    "float": [1.5, -0.25],
    "text": ["", "ä\t'\\\n😀"],
    "date": [date(1950, 1, 1), date(2026, 2, 3)],
    "time": [datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), datetime(1999, 1, 1, tzinfo=UTC)],
    "decimal": [Decimal("1.25"), Decimal("-99999.99")],
}


async def table(context: DataContext, **columns: list[Any]) -> Object:
    return await context.create_object_from_value(columns)
