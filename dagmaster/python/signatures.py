"""The parameters of a function: bound by name, encoded as JSON, and decoded to their annotated types."""

import inspect
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from dagmaster import data
from dagmaster.errors import Invalid, Misconfigured
from dagmaster.handlers import Permanent
from dagmaster.handlers.invocation import problems_of
from dagmaster.handlers.schemas import schema_of
from dagmaster.model.params import FIRST_PARAMETER
from dagmaster.python.values import CONFIG, has_models, is_arrow_table, is_open, revive, type_name

Kind = inspect.Parameter
EMPTY = inspect.Parameter.empty
MAIN = "__main__"
RETURN = "return"


class Signature:
    """Annotations are resolved on first use: they may name types that are defined further down."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.inner = inspect.signature(function)
        by_kind = {parameter.kind: parameter.name for parameter in self.parameters}
        self.many, self.others = by_kind.get(Kind.VAR_POSITIONAL), by_kind.get(Kind.VAR_KEYWORD)

    @property
    def parameters(self) -> Sequence[inspect.Parameter]:
        return list(self.inner.parameters.values())

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """The annotation of each parameter and of `return`; Any where there is none."""
        written = inspect.get_annotations(self.function)
        return {
            name: self._hint(written[name]) if name in written else Any for name in (*self.inner.parameters, RETURN)
        }

    def _hint(self, written: Any) -> Any:
        """Resolved one by one: a name that is local or only for type checkers must not affect the others."""
        alone = types.SimpleNamespace(__annotations__={RETURN: written})
        try:
            return get_type_hints(alone, getattr(self.function, "__globals__", None), include_extras=True)[RETURN]
        except NameError:
            return Any

    @property
    def first_parameter(self) -> str | None:
        """The first parameter, if it can be passed by name."""
        first = next(iter(self.parameters), None)
        if first is None or first.kind not in (Kind.POSITIONAL_OR_KEYWORD, Kind.KEYWORD_ONLY):
            return None
        return first.name

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name. Raises TypeError, as a call would."""
        try:
            named = dict(self.inner.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self.function.__qualname__}(): {error}") from None
        others = named.pop(self.others, {}) if self.others else {}
        return {**named, **others}

    def check_names(self, arguments: Collection[str]) -> None:
        """Raises TypeError for missing or unknown arguments."""
        known = {parameter.name for parameter in self._named}
        surplus = [] if self.others else [name for name in arguments if name not in known]
        missing = [
            parameter.name
            for parameter in self._named
            if self._is_needed(parameter) and parameter.name not in arguments
        ]
        if surplus or missing:
            fault, names = ("it takes no", surplus) if surplus else ("missing", missing)
            raise TypeError(f"{self.function.__qualname__}(): {fault} {', '.join(map(repr, names))}")

    def check(self, params: Mapping[str, Any]) -> None:
        """Raises Invalid for values of the wrong type."""
        try:
            self._model.model_validate_json(orjson.dumps(params))
        except ValidationError as error:
            raise Invalid(f"invalid arguments of {self.function.__qualname__}: {problems_of(error)}") from None

    def read(self, params: Mapping[str, Any], tell: Callable[..., None]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, decoded from JSON. Raises Permanent for values of the wrong type."""
        params = self._with_first(params)
        try:
            values = self._model.model_validate_json(orjson.dumps(params)).__dict__
        except ValidationError as error:
            raise Permanent(f"invalid arguments of {self.function.__qualname__}: {problems_of(error)}") from error
        try:
            return self._arguments(params, values, tell)
        except Invalid as error:  # Such as a reference with SQL; a retry cannot help.
            raise Permanent(f"invalid arguments of {self.function.__qualname__}: {error}") from error

    def _arguments(
        self, params: Mapping[str, Any], values: Mapping[str, Any], tell: Callable[..., None]
    ) -> tuple[list[Any], dict[str, Any]]:
        known = {parameter.name for parameter in self._named}
        surplus = {name: revive(value) for name, value in params.items() if name not in known}
        if surplus and not self.others:
            # Not an error: all tasks receive the `globals` of their workflow.
            tell("%s() takes no %s; ignored", self.function.__qualname__, ", ".join(map(repr, surplus)))
        args: list[Any] = []
        kwargs = dict(surplus) if self.others else {}
        for place, parameter in enumerate(self._named):
            if parameter.name in params:
                value = values[f"p{place}"]
                value = revive(value) if is_open(self.hints[parameter.name]) else value
                self._place(parameter, value, args, kwargs)
        return args, kwargs

    def _with_first(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if FIRST_PARAMETER not in params:
            return params
        first = next((parameter for parameter in self._named if parameter.kind is not Kind.VAR_POSITIONAL), None)
        if first is None or first.name in params:
            raise Permanent(f"{self.function.__qualname__} cannot be mapped: it needs a first parameter")
        return {first.name if name == FIRST_PARAMETER else name: value for name, value in params.items()}

    @cached_property
    def arrow_parameters(self) -> Sequence[str]:
        """The parameters annotated as Arrow tables."""
        return [parameter.name for parameter in self._named if is_arrow_table(self.hints[parameter.name])]

    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the parameters, in order."""
        return schema_of(self._model)

    def check_result(self, value: Any) -> None:
        """Raises Permanent for a result that is not the dataclass or model that the function declares.

        Otherwise the error would appear only where the result is used.
        """
        if (model := self._result) is None:
            return
        try:
            model(value=value)
        except ValidationError as error:
            declared = type_name(self.hints[RETURN])
            raise Permanent(
                f"{self.function.__qualname__} does not return the declared {declared}: {problems_of(error)}"
            ) from error

    @cached_property
    def _result(self) -> type[BaseModel] | None:
        annotation = self.hints[RETURN]
        if not has_models(annotation):
            return None
        try:
            return create_model("Result", __config__=CONFIG, value=(annotation, ...))
        except (PydanticUserError, NameError):
            return None  # It can still be encoded as JSON.

    @property
    def _named(self) -> Sequence[inspect.Parameter]:
        return [parameter for parameter in self.parameters if parameter.kind is not Kind.VAR_KEYWORD]

    @cached_property
    def _model(self) -> type[BaseModel]:
        """Its fields are numbered: not every parameter name is a valid field name."""
        described: dict[str, Any] = {}
        for place, parameter in enumerate(self._named):
            hint = self.hints[parameter.name]
            hint = data.View if is_arrow_table(hint) else hint
            annotation = list[hint] if parameter.kind is Kind.VAR_POSITIONAL else hint  # type: ignore[valid-type]
            described[f"p{place}"] = (
                annotation,
                Field(... if self._is_needed(parameter) else None, alias=parameter.name),
            )
        try:
            return create_model(self.function.__name__, __config__=ConfigDict(**CONFIG), **described)
        except (TypeError, ValueError, NameError) as error:
            raise Misconfigured(f"the annotations of {self.function.__qualname__} cannot be used: {error}") from error

    def _is_needed(self, parameter: inspect.Parameter) -> bool:
        return parameter.default is EMPTY and parameter.kind is not Kind.VAR_POSITIONAL

    def _place(self, parameter: inspect.Parameter, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        if parameter.kind is Kind.VAR_POSITIONAL:
            args += value
        elif parameter.kind is Kind.POSITIONAL_ONLY or (self.many and parameter.kind is Kind.POSITIONAL_OR_KEYWORD):
            args.append(value)
        else:
            kwargs[parameter.name] = value


def module_of(function: Callable[..., Any]) -> str:
    """The module name for other processes: a script goes by its file name."""
    if function.__module__ != MAIN:
        return function.__module__
    main = sys.modules[MAIN]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(f".{MAIN}")
    return Path(file).stem if file else MAIN
