"""How the package is built: rooms, modules, lines, importers; refuses changes that make the house larger or tangled.

    python -m tools.house               # the figures, and what is wrong; exit code 1 if anything is
    python -m tools.house --picture     # draws docs/rooms.svg, the rooms by floor with what each imports

A room is a folder of `backfill_assets/`, or a module beside the folders; the package's own `__init__` is none: it loads
Dagster when it is called. Migrations are history and datasets are data: neither counts.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "backfill_assets"
PICTURE: Final = ROOT / "docs" / "rooms.svg"
MOST_LINES_OF_A_MODULE: Final = 400
MOST_LINES_OF_A_FUNCTION: Final = 50
MOST_MODULES: Final = 217
MOST_LINES: Final = 49_950
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_LEFT_OUT: Final = frozenset({"migrations", "datasets"})


@dataclass(frozen=True)
class Module:
    """A module of the package: its dotted name, its text as a tree, its lines."""

    name: str
    tree: ast.Module
    lines: int

    @property
    def room(self) -> str:
        """The room that it is in; the package itself for its entry point."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else PACKAGE

    @cached_property
    def at_load(self) -> frozenset[str]:
        """What it imports while it is loaded, as dotted names of modules or of what is in them."""
        return frozenset(_imports(self.tree.body))

    @cached_property
    def anywhere(self) -> frozenset[str]:
        """The same, including imports of functions and for type checkers."""
        return frozenset(
            name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom | ast.Import)
            for name in _imports([node])
        )


def _imports(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == PACKAGE:
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.partition(".")[0] == PACKAGE)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _imports(node.orelse)
            case ast.If():
                yield from _imports([*node.body, *node.orelse])
            case ast.Try():
                handled = [inner for handler in node.handlers for inner in handler.body]
                yield from _imports([*node.body, *handled, *node.orelse, *node.finalbody])
            case ast.With() | ast.ClassDef():
                yield from _imports(node.body)
            case _:
                pass


class House:
    """The package below a folder."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        package = root / PACKAGE
        files = sorted(f for f in package.rglob("*.py") if not _LEFT_OUT & set(f.relative_to(package).parts))
        if not files:
            raise FileNotFoundError(f"{package}: there is no module")
        self.modules = {module.name: module for module in map(self._read, files)}

    def _read(self, path: Path) -> Module:
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(self.root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        return Module(name, ast.parse(text), len(text.splitlines()))

    def module_of(self, name: str) -> str | None:
        """The module that a dotted name is, or is in; None if it is not in the package."""
        if name in self.modules:
            return name
        parent = name.rpartition(".")[0]
        return parent if parent in self.modules else None

    @cached_property
    def loads(self) -> Mapping[str, frozenset[str]]:
        """By module, the modules that it imports while it is loaded."""
        return {name: self._modules(one.at_load) - {name} for name, one in self.modules.items()}

    @cached_property
    def importers(self) -> Mapping[str, frozenset[str]]:
        """By module, those that import it, anywhere in their text."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, one in self.modules.items():
            for imported in self._modules(one.anywhere) - {name}:
                found[imported].add(name)
        return {name: frozenset(found[name]) for name in self.modules}

    def _modules(self, names: frozenset[str]) -> frozenset[str]:
        return frozenset(found for name in names if (found := self.module_of(name)) is not None)

    @cached_property
    def counted(self) -> Sequence[Module]:
        """The modules that have a subject: without an `__init__` that holds a docstring alone."""
        return [one for one in self.modules.values() if len(one.tree.body) > 1 or not self._is_package(one.name)]

    def _is_package(self, name: str) -> bool:
        return (self.root / Path(*name.split(".")) / "__init__.py").exists()

    @property
    def lines(self) -> int:
        """The lines of the package."""
        return sum(one.lines for one in self.modules.values())

    @cached_property
    def rooms(self) -> Mapping[str, Sequence[Module]]:
        """The modules of each room."""
        found: dict[str, list[Module]] = defaultdict(list)
        for one in self.counted:
            found[one.room].append(one)
        return dict(found)

    @cached_property
    def arrows(self) -> frozenset[tuple[str, str]]:
        """Which room imports which."""
        pairs = {
            (self.modules[above].room, self.modules[name].room)
            for name, importers in self.importers.items()
            for above in importers
        }
        return frozenset(pair for pair in pairs if len(set(pair)) > 1 and PACKAGE not in pair)

    @property
    def floors(self) -> Sequence[Sequence[str]]:
        """The rooms by floor, the highest first, as the import contract has them."""
        text = (self.root / "pyproject.toml").read_text(encoding="utf-8")
        contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
        layers = next(one["layers"] for one in contracts if one["id"] == "rooms")
        return [[room.strip(" ()") for room in layer.split("|")] for layer in layers]

    def faults(self) -> Iterator[str]:
        """What is wrong with the house; nothing if it is in order."""
        for one in self.counted:
            if one.lines > MOST_LINES_OF_A_MODULE:
                yield f"{one.name} has {one.lines} lines; a module has at most {MOST_LINES_OF_A_MODULE}"
            for node in ast.walk(one.tree):
                if isinstance(node, FUNCTIONS) and (lines := lines_of(node)) > MOST_LINES_OF_A_FUNCTION:
                    yield f"{one.name}.{node.name} has {lines} lines; a function has at most {MOST_LINES_OF_A_FUNCTION}"
        names = Counter(
            node.name for one in self.counted for node in one.tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
        )  # fmt: skip
        yield from (
            f"{count} classes are called {name}; a name means one thing" for name, count in names.items() if count > 1
        )
        yield from (f"modules import each other while they are loaded: {' → '.join(ring)}" for ring in self.rings())
        both = (pair for pair in sorted(self.arrows) if pair[0] < pair[1] and pair[::-1] in self.arrows)
        yield from (f"rooms import each other: {one} and {other}" for one, other in both)
        if len(self.counted) > MOST_MODULES:
            yield f"{len(self.counted)} modules; at most {MOST_MODULES}: a module exists because it has a subject"
        if self.lines > MOST_LINES:
            yield f"{self.lines:,} lines; at most {MOST_LINES:,}: say in the change what paid for more, and raise the limit there"

    def rings(self) -> Iterator[Sequence[str]]:
        """Modules that import each other while they are loaded, one ring for each place at which one was found."""
        done: set[str] = set()

        def walk(name: str, path: tuple[str, ...]) -> Iterator[Sequence[str]]:
            if name in path:
                yield (*path[path.index(name) :], name)
            elif name not in done:
                for below in sorted(self.loads[name]):
                    yield from walk(below, (*path, name))
                done.add(name)

        for name in sorted(self.modules):
            yield from walk(name, ())


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring: documentation is never too long for a rule."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return total
    docstring = function.body[0]
    return total - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def picture(house: House) -> str:
    """The rooms by floor as SVG; of what a room imports, only what it does not reach through another one it imports."""
    below = {room: {other for one, other in house.arrows if one == room} for room in house.rooms}

    def reached(room: str) -> set[str]:
        return below[room].union(*(reached(other) for other in below[room]))

    width, height, gap, across = 130, 34, 50, 660
    places: dict[str, tuple[float, float]] = {}
    for row, floor in enumerate(house.floors):
        rooms = [room for room in floor if room in house.rooms]
        first = (across - len(rooms) * width - (len(rooms) - 1) * gap) / 2
        places |= {room: (first + n * (width + gap), row * (height + 34) + 10) for n, room in enumerate(rooms)}
    tall = max(y for _, y in places.values()) + height + 10
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {tall:.0f}" font-family="sans-serif" font-size="13">',
        f'<rect width="{across}" height="{tall:.0f}" fill="#fff"/>',
    ]
    for room, others in sorted(below.items()):
        for other in sorted(others - set().union(*(reached(one) for one in others))):
            (x, y), (to_x, to_y) = places[room], places[other]
            begin = f'x1="{x + width / 2:.0f}" y1="{y + height:.0f}"'
            end = f'x2="{to_x + width / 2:.0f}" y2="{to_y:.0f}"'
            out.append(f'<line {begin} {end} stroke="#9ab"/>')
    for room, (x, y) in places.items():
        out += [
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{width}" height="{height}" rx="6" fill="#eef4fa" stroke="#456"/>',
            f'<text x="{x + width / 2:.0f}" y="{y + 22:.0f}" text-anchor="middle">{room}</text>',
        ]
    return "\n".join([*out, "</svg>", ""])


def report(house: House) -> str:
    """The figures of the house, one line for each room."""
    single = [one.name for one in house.counted if len(house.importers[one.name]) == 1]
    sizes = sorted(one.lines for one in house.counted)
    rows = [
        f"{room:15} {len(modules):3} modules {sum(one.lines for one in modules):6,} lines, imports "
        + (", ".join(sorted(other for one, other in house.arrows if one == room)) or "nothing")
        for room, modules in sorted(house.rooms.items())
    ]
    shape = f"{len(house.rooms)} rooms, {len(house.arrows)} arrows between them; {len(sizes)} modules, {house.lines:,} lines"
    about = f"median {sizes[len(sizes) // 2]} lines, longest {sizes[-1]}; {len(single)} are imported by one module only"
    return "\n".join([*rows, shape, about])


def main() -> int:
    """Print the figures, or draw the picture; the exit code."""
    house = House()
    if "--picture" in sys.argv[1:]:
        PICTURE.write_text(picture(house), encoding="utf-8")
        return 0
    print(report(house))  # noqa: T201 - a script
    faults = list(house.faults())
    for fault in faults:
        print(f"house: {fault}", file=sys.stderr)  # noqa: T201
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
