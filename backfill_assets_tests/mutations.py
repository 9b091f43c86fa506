"""Small changes of Python source that make a program behave differently: where they are possible, and the text after each.

Each change is one span of the text, found by its place in the syntax tree, so everything else keeps its formatting. Changes
that are no bug of behaviour are left out: annotations, messages, log lines, decorators, sizes chosen for speed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Final

_SYMBOLS: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_WORDS: Final = {"in": "not in", "not in": "in", "is": "is not", "is not": "is"}
_COMPARISONS: Final = _SYMBOLS | _WORDS
_AND_OR: Final = {"and": "or", "or": "and"}
_ARITHMETIC: Final = {"+": "-", "-": "+", "+=": "-=", "-=": "+="}
_SETS: Final = {"&": "|", "|": "&", "-": "&", "&=": "|=", "|=": "&=", "-=": "&="}
_FUNCTIONS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_EMPTY: Final = {"str": '""', "int": "0", "tuple": "()", "list": "[]", "dict": "{}", "Sequence": "()", "Mapping": "{}"}
_SHOWS: Final = {"__repr__", "__str__", "__rich__"}
# Times, batch sizes, widths: another number makes a program slower or a table wider, not wrong.
_TUNING: Final = re.compile(
    r"timeout|seconds|minutes|wait|delay|poll|interval|backoff|retr|size|chunk|buffer|cache|width|height|padding|indent"
    r"|workers|threads|font|opacity|stacklevel",
    re.IGNORECASE,
)
# Flags that guard against errors of programmers, or that style text.
_GUARDS: Final = {"frozen", "slots", "kw_only", "strict", "markup", "highlight", "soft_wrap", "daemon"}


@dataclass(frozen=True)
class Mutation:
    """One change: bytes `start` to `end` of the source are replaced by `text`; `line` to `last` are its lines, from 1."""

    kind: str
    line: int
    last: int
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The source after the change."""
        content = source.encode()
        return (content[: self.start] + self.text.encode() + content[self.end :]).decode()


def mutations(source: str) -> list[Mutation]:
    """All changes that can be made in a module, in the order of its text."""
    finder = _Finder(source)
    return sorted(finder.found, key=lambda m: (m.start, m.end, m.kind, m.text))


def is_another_program(source: str, planted: str) -> bool:
    """Whether a changed source is still Python with another meaning."""
    try:
        return ast.dump(ast.parse(planted)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.found: list[Mutation] = []
        self._content = source.encode()
        self._starts = [0, *accumulate(len(line) for line in self._content.splitlines(keepends=True))]
        self._returns = ""
        self._constants = True
        tree = ast.parse(source)
        blocks = chain.from_iterable(
            (getattr(n, f, None) for f in ("body", "orelse", "finalbody")) for n in ast.walk(tree)
        )
        self._alone = {block[0] for block in blocks if isinstance(block, list) and len(block) == 1}
        self.visit(tree)

    # What stays as it is.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text for people."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """A statement that is true anyway."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """A message; the condition above it decides whether it is raised."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._given(ast.unparse(node.target), node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._given(" ".join(ast.unparse(target) for target in node.targets), node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        self._given(node.arg or "", node.value)

    def _given(self, name: str, value: ast.expr | None) -> None:
        """Visit a node under a name, which says what its constants are about."""
        before = self._constants
        self._constants = before and not _TUNING.search(name) and name not in _GUARDS
        if value is not None:
            self.visit(value)
        self._constants = before

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in _SHOWS:
            return
        positional = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
        for argument, default in chain(positional, zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)):
            self._given(argument.arg, default)
        outer, self._returns = self._returns, ast.unparse(node.returns) if node.returns else ""
        for statement in node.body:
            self.visit(statement)
        self._returns = outer

    # What changes.

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in pairwise([node.left, *node.comparators]):
            self._between("comparison", left, right, _COMPARISONS)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in pairwise(node.values):
            self._between("and/or", left, right, _AND_OR)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("not dropped", node, self._text(node.operand))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not (_is_type(node.left) or _is_type(node.right)):
            self._operator(node.left, node.right)
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._operator(node.target, node.value)
        self.visit(node.value)

    def _operator(self, left: ast.expr, right: ast.expr) -> None:
        if _is_set(left) or _is_set(right):
            self._between("set operation", left, right, _SETS)
        elif not (_is_sequence(left) or _is_sequence(right)):
            self._between("arithmetic", left, right, _ARITHMETIC)
            self._between("set operation", left, right, {s: _SETS[s] for s in _SETS if s not in _ARITHMETIC})

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in {"TYPE_CHECKING", "__name__ == '__main__'"}:
            self._negate(node.test)
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        """Negate a condition; for a comparison or a `not`, other mutations do that."""
        if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            self._add("condition negated", test, f"not {self._text(test)}")
        elif isinstance(test, (ast.BoolOp, ast.NamedExpr)):
            self._add("condition negated", test, f"not ({self._text(test)})")

    def visit_Constant(self, node: ast.Constant) -> None:
        if self._constants and isinstance(node.value, bool):
            self._add("True/False", node, str(not node.value))
        elif self._constants and isinstance(node.value, int):
            octal = self._text(node).startswith("0o")
            self._add("number + 1", node, f"0o{node.value + 1:o}" if octal else str(node.value + 1))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if self._returns == "bool":
            self._negate(node.value)
        elif self._returns.endswith("| None"):
            self._add("nothing returned", node.value, "None")
        # Where only a value of a wrong type is possible, mypy finds it: too easy.
        elif "|" not in self._returns and (empty := _EMPTY.get(self._returns.partition("[")[0])):
            self._add("nothing returned", node.value, empty)
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name in _FUNCTIONS:
            self._add("min/max" if name in {"min", "max"} else "any/all", node.func, _FUNCTIONS[name])
        elif name == "sorted" and not any(keyword.arg == "reverse" for keyword in node.keywords):
            self._add("order", node, f"{self._text(node)[:-1]}, reverse=True)")
        if not _is_log(node):
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not _is_log(node.value):
            if node in self._alone:
                self._add("call deleted", node, "pass")
            elif ast.unparse(node.value.func) != "assert_never":
                last = node.end_lineno or node.lineno
                lines = self._starts[node.lineno - 1], self._starts[last]
                self.found.append(Mutation("call deleted", node.lineno, last, *lines, ""))
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    # Where it is.

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._content[start:end].decode()

    def _add(self, kind: str, node: ast.expr | ast.stmt, text: str) -> None:
        self.found.append(Mutation(kind, node.lineno, node.end_lineno or node.lineno, *self._span(node), text))

    def _between(self, kind: str, left: ast.expr, right: ast.expr, swaps: dict[str, str]) -> None:
        """Swap the operator between two operands; there may also be brackets and line ends."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self._content[start:end].decode()
        operator = re.search(r"not\s+in|is\s+not|[^\s()]+", gap)
        if operator and "#" not in gap and (other := swaps.get(" ".join(operator[0].split()))):
            line = self._content.count(b"\n", 0, start + operator.start()) + 1
            self.found.append(Mutation(kind, line, line, start + operator.start(), start + operator.end(), other))


def _is_type(node: ast.expr) -> bool:
    """Whether an operand of `|` looks like a type."""
    name = ast.unparse(node).partition("[")[0].rpartition(".")[2]
    builtin = name in {"str", "int", "float", "bool", "bytes", "tuple", "list", "dict", "set", "frozenset"}
    return builtin or (name.isidentifier() and name[0].isupper() and not name.isupper())


def _is_set(node: ast.expr) -> bool:
    made = isinstance(node, ast.Call) and re.search(r"(^|\.)(set|frozenset|keys)$", ast.unparse(node.func))
    return bool(made) or isinstance(node, (ast.Set, ast.SetComp))


def _is_sequence(node: ast.expr) -> bool:
    """Whether a `+` beside it only joins texts or lists: a `-` there is of a wrong type, which mypy finds."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    return is_text or isinstance(node, (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple))


def _is_log(node: ast.Call) -> bool:
    name = ast.unparse(node.func).lower()
    return bool(re.search(r"log\w*\.(debug|info|warning|error|exception|log)$", name))
