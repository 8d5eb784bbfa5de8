"""The JSON Schema of a handler's parameters, marked where the handler's own validators parse them."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from dagmaster.model.params import READ_BY_CODE


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Raises pydantic's error for a type that JSON Schema cannot express."""
    return model.model_json_schema(schema_generator=_Marking)


class _Marking(GenerateJsonSchema):
    """A before-validator may accept values that the schema rejects, such as a list as a comma-separated string."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        return _marked(super().function_before_schema(schema))

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> JsonSchemaValue:
        return _marked(super().function_wrap_schema(schema))

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        return _marked(super().function_plain_schema(schema))

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        return _marked(described) if _has_other_names(schema) else described


def _marked(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {**schema, READ_BY_CODE: True}


def _has_other_names(schema: core_schema.ModelSchema) -> bool:
    """Whether a field has a name that the schema does not list."""
    model = schema["cls"]
    config = getattr(model, "model_config", {})
    fields = getattr(model, "model_fields", {})
    if config.get("populate_by_name") or config.get("validate_by_name"):
        return any(field.validation_alias is not None for field in fields.values())
    return any(not isinstance(field.validation_alias, str | None) for field in fields.values())
