"""The filters of a list of assets, as query parameters."""

from typing import Annotated

from fastapi import Depends, Query

from dagmaster.model.asset import ApprovalState, AssetFilter, ClearanceState, DataType, ProcessingStatus, parse_refs

Refs = Annotated[
    str | None,
    Query(max_length=4000, description="JSON object: the references that the asset or a version of it has."),
]


def asset_filter(
    platform_id: str | None = None,
    refs: Refs = None,
    data_type: DataType | None = None,
    clearance_state: ClearanceState | None = None,
    approval_state: ApprovalState | None = None,
    processing_status: ProcessingStatus | None = None,
) -> AssetFilter:
    return AssetFilter(
        platform_id=platform_id,
        refs=parse_refs(refs),
        data_type=data_type,
        clearance_state=clearance_state,
        approval_state=approval_state,
        processing_status=processing_status,
    )


FilterOfQuery = Annotated[AssetFilter, Depends(asset_filter)]
