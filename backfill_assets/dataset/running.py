"""Run a Python model, and the project's modules that it imports, from exactly the bytes that its code version covers.

Python's own import could run a stale `.pyc`, a module that another version left in `sys.modules`, or a file that was deployed
since. Here each run compiles the bytes that were hashed when the dataset was loaded, into modules of its own. So the code that
runs is the code that was hashed, whatever is on disk now.

The code of a model has its own `__import__`, in every function and thread. Nothing changes for the rest of the process: two
versions of a module can run side by side, and the standard library and Spark are imported as usual.
"""

from __future__ import annotations

import builtins
import itertools
import linecache
import os
import sys
import zoneinfo
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import decode_source, resolve_name
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

from backfill_assets.core.errors import ModelError
from backfill_assets.dataset.loaded import Model, ModuleSource
from backfill_assets.dataset.models import GIVEN, OWN, in_library, is_installed

_NUMBERS: Final = itertools.count(1)
_WATCHED: Final = {"open": 0, "os.system": 0, "socket.connect": 1, "sqlite3.connect": 0, "subprocess.Popen": 0}
"""Events of `sys.audit` that show access to something outside the code, and which of their arguments names it."""
_READERS: Final = {"importlib.metadata", "linecache", "tokenize"}
"""Modules that read the versions of installed packages, and source for tracebacks and warnings."""


@contextmanager
def running(model: Model) -> Iterator[ModuleType]:
    """Run a Python model from its text and yield its module; call its functions within the context.

    Raises:
        ModelError: its code imports or reads what is not hashed, even if the code catches the refusal.
    """
    _watch()
    code = _HashedCode(model)
    try:
        yield code.run(model)
    except Exception:
        code.require_nothing_refused()
        raise
    else:
        code.require_nothing_refused()
    finally:
        code.forget()


class _HashedCode:
    """The code of one run: modules of its own, under unique names.

    They are in `sys.modules` under these names while it runs: dataclasses, type hints and pickle look there.
    """

    def __init__(self, model: Model) -> None:
        self.home = f"{model.layer} model {next(_NUMBERS)}"  # no import statement can name it
        self.sources = model.modules
        self.projects = {name.partition(".")[0] for name in model.modules}
        self.loaded: dict[str, ModuleType] = {}
        self.refused: list[ModelError] = []
        self.builtins = {**vars(builtins), "__import__": self.import_}

    def run(self, model: Model) -> ModuleType:
        return self._run("", ModuleSource(model.path, b""), model.text)

    def forget(self) -> None:
        for name in [self.home, *(f"{self.home}.{name}" for name in self.loaded)]:
            sys.modules.pop(name, None)

    def require_nothing_refused(self) -> None:
        if self.refused:
            raise self.refused[0]

    def import_(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002  # the name that Python gives it
        locals: Mapping[str, Any] | None = None,  # noqa: A002, ARG002  # the same
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import for the statements of a model's code, in place of Python's own `__import__`."""
        package = str((globals or {}).get("__package__") or "")
        full = resolve_name("." * level + name, package) if level else name
        top = full.partition(".")[0]
        if top == self.home:  # pickle asks for a module by the name that it has
            return sys.modules[full if fromlist else top]
        if top == "builtins":  # it would lead to Python's own import
            return self._own_builtins()
        if top not in self.projects:
            return self._given(full, top, package, fromlist)
        module = self._module(full)
        for part in fromlist or ():
            self._part(module, full, part)
        return module if fromlist else self.loaded[top]

    def _own_builtins(self) -> ModuleType:
        module = ModuleType("builtins")
        module.__dict__.update(self.builtins)
        return module

    def _given(self, full: str, top: str, package: str, fromlist: Sequence[str] | None) -> ModuleType:
        """Import from the standard library, Spark, or installed packages that these or backfill_assets need.

        A model that names such a package itself is refused when it is loaded. But C code imports in the name of its caller.
        """
        if top not in GIVEN and package.partition(".")[0] != OWN and not is_installed(_place(top) or "/"):
            raise self._unknown(full)
        module = __import__(full, None, None, fromlist or ())
        place = _place(top) if top in sys.stdlib_module_names else None
        if place is not None and not is_installed(place):
            what = f"imports {full}, but Python has imported the project's {place} in its place; rename that"
            raise self.refuse(sys._getframe(), what)  # noqa: SLF001  # as below
        return module

    def _module(self, full: str) -> ModuleType:
        """The module of that name, after its parent packages."""
        above: ModuleType | None = None
        parts = full.split(".")
        for number, part in enumerate(parts, 1):
            name = ".".join(parts[:number])
            if name not in self.sources:
                raise self._unknown(full)
            if name not in self.loaded:
                self._run(name, self.sources[name])
                if above is not None:
                    setattr(above, part, self.loaded[name])
            above = self.loaded[name]
        return self.loaded[full]

    def _part(self, module: ModuleType, full: str, name: str) -> None:
        """Let `from full import name` find a module of that name; Python itself looks up other names."""
        if name == "*":
            for each in getattr(module, "__all__", ()):
                self._part(module, full, each)
        elif not hasattr(module, name):
            child = f"{full}.{name}"
            on_disk = (folder / name for folder in self.sources[full].folders)
            if child in self.sources:
                self._module(child)
            elif any(place.is_dir() or place.with_suffix(".py").is_file() for place in on_disk):
                raise self._unknown(child)

    def _run(self, name: str, source: ModuleSource, text: str | None = None) -> ModuleType:
        own_name = f"{self.home}.{name}" if name else self.home
        module = ModuleType(own_name)
        package = name if source.folders else name.rpartition(".")[0]
        module.__dict__.update(__builtins__=self.builtins, __package__=package)
        if source.folders:
            module.__path__ = [str(folder) for folder in source.folders]
        sys.modules[own_name] = self.loaded[name] = module
        if source.file is not None:
            module.__file__ = file = str(source.file)
            try:
                code = compile(source.content if text is None else text, file, "exec", dont_inherit=True)
                shown = decode_source(source.content) if text is None else text
                linecache.cache[file] = (len(shown), None, shown.splitlines(keepends=True), file)  # for tracebacks
                exec(code, module.__dict__)  # noqa: S102  # that is what a model is
            except BaseException:
                del sys.modules[own_name], self.loaded[name]
                raise
            self.loaded[name] = sys.modules.get(own_name, module)  # a module may put another object in its place
        return self.loaded[name]

    def refuse(self, frame: FrameType, what: str) -> ModelError:
        """Record the refusal of what the code at that frame, or above it, does; it counts even if the code catches it."""
        while frame.f_code.co_filename == _HERE and frame.f_back is not None:
            frame = frame.f_back
        error = ModelError(f"{frame.f_code.co_filename}, line {frame.f_lineno}: {what}")
        self.refused.append(error)
        return error

    def _unknown(self, name: str) -> ModelError:
        return self.refuse(
            sys._getframe(),  # noqa: SLF001  # what `inspect` calls as well
            f"imports {name}, which is not part of the code version: no import statement that was followed names it; "
            f"write one (import {name}) at the top of the model",
        )


def _place(top: str) -> str | None:
    """The location of a package that Python has imported."""
    module = sys.modules.get(top)
    return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)


@cache
def _watch() -> None:
    """Install the audit hook with the first Python model; Python cannot remove it."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what a model's code accesses, directly or through the standard library; Spark's own access is not checked."""
    if event not in _WATCHED:
        return
    asked = arguments[_WATCHED[event]]
    if event == "open" and (isinstance(asked, int) or arguments[2] & os.O_ACCMODE == os.O_WRONLY):
        return
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # as above
    while frame is not None and (code := _code_of(frame)) is None:
        file = frame.f_code.co_filename
        if not (file.startswith("<") or in_library(file)) or frame.f_globals.get("__name__") in _READERS:
            return
        frame = frame.f_back
    if frame is None or code is None or (event == "open" and _comes_with_python(os.fsdecode(asked))):
        return
    raise code.refuse(
        frame,
        f"asks for {asked!r} ({event}), which is not part of the code version; a model has only its tables and its code: make "
        "it a reference in dataset.yaml, or write it into a module and import that with a statement",
    )


def _code_of(frame: FrameType) -> _HashedCode | None:
    """The model's code that runs in a frame, or that a module of Python is imported for there; None for any other code."""
    if frame.f_code is _IMPORT and frame.f_locals["top"] in sys.stdlib_module_names:
        found = frame.f_locals["self"]
    else:
        found = getattr(frame.f_builtins.get("__import__"), "__self__", None)
    return found if isinstance(found, _HashedCode) else None


_IMPORT: Final = _HashedCode._given.__code__  # noqa: SLF001  # of the class above
_HERE: Final = _IMPORT.co_filename


def _comes_with_python(file: str) -> bool:
    # Below pycache_prefix a model reads only Python's own compiled files, never those of the project.
    folders = [*zoneinfo.TZPATH, *([sys.pycache_prefix] if sys.pycache_prefix is not None else [])]
    return is_installed(file) or any(Path(file).is_relative_to(folder) for folder in folders)
