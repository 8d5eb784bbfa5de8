"""The OpenAPI document: FastAPI's routes with their roles and the errors of any request."""

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from dagmaster.model.access import Role
from dagmaster.web.access import decision

SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, `dm_...`, or for reports a task's token.",
    },
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same API key."},
}

_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}}
# Responses to any body, before a route sees it.
OF_BODIES = {
    "400": {"description": "The body cannot be read.", "content": _ERROR},
    "413": {"description": "The body is too large.", "content": _ERROR},
}


def describe_access(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """So that generated clients send the key; `x-roles` is for people."""
    make, roles = app.openapi, _roles(routers)

    def document() -> dict[str, Any]:
        schema = make()
        schema.setdefault("components", {})["securitySchemes"] = SCHEMES
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                allowed = roles[method.upper(), path]
                operation["security"] = [{name: []} for name in SCHEMES] if allowed is not None else []
                operation["x-roles"] = allowed if allowed is not None else ["everybody"]
                if "requestBody" in operation:
                    operation["responses"] = {**OF_BODIES, **operation["responses"]}
        return schema

    app.openapi = document  # type: ignore[method-assign]


def _roles(routers: Iterable[APIRouter]) -> dict[tuple[str, str], list[str] | None]:
    roles: dict[tuple[str, str], list[str] | None] = {}
    for route in (route for router in routers for route in router.routes):
        allow = decision(route)
        if isinstance(route, APIRoute) and allow is not None:
            allowed = None if allow.roles is None else [role.value for role in Role if role in allow.roles]
            roles.update({(method, route.path): allowed for method in route.methods or ()})
    return roles
