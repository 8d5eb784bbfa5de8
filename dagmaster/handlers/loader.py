"""Import the modules and files in which handlers are defined."""

import importlib
import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from dagmaster.errors import Conflict, Misconfigured
from dagmaster.handlers import basic, export
from dagmaster.handlers.registry import Handler, Registry
from dagmaster.handlers.registry import registry as default_registry
from dagmaster.model.optional_handlers import extra_of

ENTRY_POINT_GROUP = "dagmaster.handlers"
BUILT_IN = (basic, export)

logger = logging.getLogger(__name__)

_loading: ContextVar[str | None] = ContextVar("dagmaster_loading", default=None)


def load_handlers(specs: Sequence[str], registry: Registry = default_registry) -> None:
    """Fill the registry: the built-in handlers, those of installed packages, and each module or FILE.py of `specs`."""
    for module in BUILT_IN:
        _pass_on(_defined_in(module), registry)
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            _load(entry_point.module, _import_name, registry)
        except Misconfigured as error:
            raise Misconfigured(f"the installed entry point {entry_point.name!r} is broken: {error}") from error
    for spec in specs:
        _load(spec, _import_file if _is_path(spec) else _import_name, registry)


def _load(spec: str, import_: Callable[[str], ModuleType], registry: Registry) -> None:
    # Decorators fill the default registry when a module is first imported, by whatever code; copy from there.
    before = set(default_registry)
    with loading(spec):
        module = import_(spec)
    handlers = (set(default_registry) - before) | _defined_in(module)
    if not handlers:
        logger.warning("%s registers no handlers; is @handler missing?", spec)
    _pass_on(handlers, registry)


@contextmanager
def loading(module: str) -> Iterator[None]:
    token = _loading.set(module)
    try:
        yield
    finally:
        _loading.reset(token)


def need_loaded() -> None:
    """Raises Conflict while a module is being loaded: a workflow that it runs would load it again, endlessly."""
    if (module := _loading.get()) is not None:
        raise Conflict(
            f"{module} runs a workflow when it is imported; guard the call with `if __name__ == '__main__':`"
        )


def _defined_in(module: ModuleType) -> set[Handler]:
    prefix = module.__name__ + "."
    return {handler for handler in default_registry if f"{handler.function.__module__}.".startswith(prefix)}


def _pass_on(handlers: set[Handler], registry: Registry) -> None:
    for handler in sorted(handlers, key=lambda entry: entry.name):
        registry.register(handler)


def _is_path(spec: str) -> bool:
    return spec.endswith(".py") or "/" in spec or "\\" in spec


def _import_name(name: str) -> ModuleType:
    make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise Misconfigured(
                f"cannot load handlers: there is no module {name!r}, neither installed nor in {Path.cwd()}"
            ) from error
        if (extra := extra_of(name)) is not None:
            raise Misconfigured(
                f"the handlers of {name} need {error.name}: install it with `pip install 'dagmaster[{extra}]'`"
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise _broken(name, error) from error


def _import_file(spec: str) -> ModuleType:
    path = Path(spec).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise Misconfigured(f"there is no Python file {spec!r} to load handlers from (looked for {path})")
    make_importable(path.parent)
    try:
        return _find_loaded(path) or _import_by_stem(path) or _import_by_path(path)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise _broken(spec, error) from error


def make_importable(folder: Path) -> None:
    """Make the modules of this folder importable, as `python FILE.py` does, but never in place of installed ones."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()


def _find_loaded(path: Path) -> ModuleType | None:
    """The module if it is already loaded, as the running script or as part of a package: it must not run twice."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return next((module for module in modules if _is_from(path, vars(module).get("__file__"))), None)


def _is_from(path: Path, file: object) -> bool:
    return isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path


def _import_by_stem(path: Path) -> ModuleType | None:
    """Import it as its neighbours would; None if the name belongs to another module."""
    if not path.stem.isidentifier() or path.stem in sys.modules:
        return None
    spec = importlib.util.find_spec(path.stem)
    if not spec or not spec.origin or Path(spec.origin).resolve() != path:
        return None
    return importlib.import_module(path.stem)


def _import_by_path(path: Path) -> ModuleType:
    name = f"{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not spec or not spec.loader:
        raise ImportError(f"Python cannot import {path}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _broken(spec: str, error: BaseException) -> Misconfigured:
    kind = "" if isinstance(error, Misconfigured) else f"{type(error).__name__}: "
    return Misconfigured(f"cannot load handlers from {spec!r}: {kind}{error}{_place(error)}")


def _place(error: BaseException) -> str:
    """The line that failed, after the line of the loaded code that led there if it is in another file."""
    if isinstance(error, SyntaxError):
        return ""  # Its message names the place.
    own = ("<frozen importlib", str(Path(__file__).parent), str(Path(importlib.__file__).parent))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    if not frames:
        return ""
    first, last = frames[0], frames[-1]
    ends = [last] if first.filename == last.filename else [first, last]
    return f" ({' -> '.join(f'{frame.filename}:{frame.lineno}' for frame in ends)})"
