"""A function's parameters as they travel: by name, as JSON, and back to what the function was written for."""

import inspect
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from dagmaster.errors import Invalid, Misconfigured
from dagmaster.handlers import Permanent
from dagmaster.handlers.invocation import problems_of
from dagmaster.handlers.schemas import schema_of
from dagmaster.model.params import FIRST_PARAMETER
from dagmaster.python.values import CONFIG, has_models, is_open, revive, shown

Kind = inspect.Parameter
EMPTY = inspect.Parameter.empty
MAIN = "__main__"
RETURN = "return"


class Signature:
    """What is looked at only when it is needed: annotations may name what is defined further down."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.inner = inspect.signature(function)
        self.many = next((one.name for one in self.parameters if one.kind is Kind.VAR_POSITIONAL), None)
        self.others = next((one.name for one in self.parameters if one.kind is Kind.VAR_KEYWORD), None)

    @property
    def parameters(self) -> Sequence[inspect.Parameter]:
        return list(self.inner.parameters.values())

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """The annotation of each parameter and of `return`; Any for what has none."""
        written = inspect.get_annotations(self.function)
        return {
            name: self._hint(written[name]) if name in written else Any for name in (*self.inner.parameters, RETURN)
        }

    def _hint(self, written: Any) -> Any:
        """One at a time: a name that only type checkers know, or a local one, leaves the others as they are."""
        alone = types.SimpleNamespace(__annotations__={RETURN: written})
        try:
            return get_type_hints(alone, getattr(self.function, "__globals__", None), include_extras=True)[RETURN]
        except NameError:
            return Any

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name. Raises TypeError, as a call would."""
        try:
            named = dict(self.inner.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self.function.__qualname__}(): {error}") from None
        others = named.pop(self.others, {}) if self.others else {}
        return {**named, **others}

    def check_names(self, given: Collection[str]) -> None:
        """Raises TypeError for arguments that are missing, or that it does not take."""
        known = {one.name for one in self._named}
        surplus = [] if self.others else [name for name in given if name not in known]
        missing = [one.name for one in self._named if self._is_needed(one) and one.name not in given]
        if surplus or missing:
            fault, names = ("it takes no", surplus) if surplus else ("missing", missing)
            raise TypeError(f"{self.function.__qualname__}(): {fault} {', '.join(map(repr, names))}")

    def check(self, params: Mapping[str, Any]) -> None:
        """Raises Invalid when they do not fit."""
        try:
            self._model.model_validate_json(orjson.dumps(params))
        except ValidationError as error:
            raise Invalid(f"wrong arguments of {self.function.__qualname__}: {problems_of(error)}") from None

    def read(self, params: Mapping[str, Any], tell: Callable[..., None]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for a call, from JSON. Raises Permanent when they do not fit."""
        params = self._with_first(params)
        try:
            found = self._model.model_validate_json(orjson.dumps(params)).__dict__
        except ValidationError as error:
            raise Permanent(f"invalid arguments of {self.function.__qualname__}: {problems_of(error)}") from error
        known = {one.name for one in self._named}
        surplus = {name: revive(value) for name, value in params.items() if name not in known}
        if surplus and not self.others:
            # Not refused: the `globals` of a workflow are given to all of its tasks.
            tell("%s() takes no %s; ignored", self.function.__qualname__, ", ".join(map(repr, surplus)))
        args: list[Any] = []
        kwargs = dict(surplus) if self.others else {}
        for place, one in enumerate(self._named):
            if one.name in params:
                self._place(one, self._whole(one, found[f"p{place}"]), args, kwargs)
        return args, kwargs

    def _with_first(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if FIRST_PARAMETER not in params:
            return params
        first = next((one for one in self._named if one.kind not in (Kind.VAR_POSITIONAL,)), None)
        if first is None or first.name in params:
            raise Permanent(f"{self.function.__qualname__} cannot be mapped: it needs a first parameter of its own")
        return {first.name if name == FIRST_PARAMETER else name: value for name, value in params.items()}

    def schema(self) -> Mapping[str, Any]:
        """JSON Schema of the parameters, in their order."""
        return schema_of(self._model)

    def check_result(self, value: Any) -> None:
        """Raises Permanent for what is not the dataclass or model that the function says to return.

        Who uses the result would find out as well, but far from the fault.
        """
        if (model := self._result) is None:
            return
        try:
            model(value=value)
        except ValidationError as error:
            wanted = shown(self.hints[RETURN])
            raise Permanent(
                f"{self.function.__qualname__} does not return {wanted} as it says: {problems_of(error)}"
            ) from error

    @cached_property
    def _result(self) -> type[BaseModel] | None:
        annotation = self.hints[RETURN]
        if not has_models(annotation):
            return None
        try:
            return create_model("Result", __config__=CONFIG, value=(annotation, ...))
        except (PydanticUserError, NameError):
            return None  # It is written as JSON all the same.

    @property
    def _named(self) -> Sequence[inspect.Parameter]:
        return [one for one in self.parameters if one.kind is not Kind.VAR_KEYWORD]

    @cached_property
    def _model(self) -> type[BaseModel]:
        """Its fields are numbered: parameters may have names that fields cannot have."""
        described: dict[str, Any] = {}
        for place, one in enumerate(self._named):
            hint = self.hints[one.name]
            annotation = list[hint] if one.kind is Kind.VAR_POSITIONAL else hint  # type: ignore[valid-type]
            described[f"p{place}"] = (annotation, Field(... if self._is_needed(one) else None, alias=one.name))
        try:
            return create_model(self.function.__name__, __config__=ConfigDict(**CONFIG), **described)
        except (TypeError, ValueError, NameError) as error:
            raise Misconfigured(f"the annotations of {self.function.__qualname__} cannot be used: {error}") from error

    def _is_needed(self, one: inspect.Parameter) -> bool:
        return one.default is EMPTY and one.kind is not Kind.VAR_POSITIONAL

    def _whole(self, one: inspect.Parameter, value: Any) -> Any:
        return revive(value) if is_open(self.hints[one.name]) else value

    def _place(self, one: inspect.Parameter, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        if one.kind is Kind.VAR_POSITIONAL:
            args += value
        elif one.kind is Kind.POSITIONAL_ONLY or (self.many and one.kind is Kind.POSITIONAL_OR_KEYWORD):
            args.append(value)
        else:
            kwargs[one.name] = value


def module_of(function: Callable[..., Any]) -> str:
    """The name of its module for other processes: a script is a module by the name of its file."""
    if function.__module__ != MAIN:
        return function.__module__
    main = sys.modules[MAIN]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(f".{MAIN}")
    return Path(file).stem if file else MAIN
