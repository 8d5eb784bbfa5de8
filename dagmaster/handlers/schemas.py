"""The JSON Schema of a handler's parameters, with a mark wherever the handler's own code reads them."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from dagmaster.model.params import READ_BY_CODE


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Raises what pydantic raises where JSON Schema has no word for a type."""
    return model.model_json_schema(schema_generator=_Marking)


class _Marking(GenerateJsonSchema):
    """A validator that runs first may take what the schema refuses: a list as one string with commas, for example."""

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
    """Whether a field may be given under a name that the schema does not list."""
    model = schema["cls"]
    config = getattr(model, "model_config", {})
    fields = getattr(model, "model_fields", {})
    if config.get("populate_by_name") or config.get("validate_by_name"):
        return any(field.validation_alias is not None for field in fields.values())
    return any(not isinstance(field.validation_alias, str | None) for field in fields.values())
