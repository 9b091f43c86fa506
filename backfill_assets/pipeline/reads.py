"""Finds and names what a query reads or calls beyond the tables that it was given.

The plan built by Spark's client names relations and functions; it is walked down to the given tables. SQL text is opaque in
the plan: its functions are found by tokens, so that no string, comment or column is mistaken for one. Only Spark can say which
relations a text reads: it analyses the plan once more, with the given tables marked, and every unmarked relation is foreign.
Marked tables are empty, so Spark opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pyspark.sql import DataFrame

from backfill_assets.dataset.functions import WITHOUT_BRACKETS, Call, SqlCalls, refusal
from backfill_assets.dataset.models import has_nested_comment, sql_problems

# fmt: off
_KNOWN: Final = frozenset({
    "aggregate", "as_of_join", "cached_local_relation", "chunked_cached_local_relation", "collect_metrics",
    "deduplicate", "drop", "drop_na", "fill_na", "filter", "hint", "join", "lateral_join", "limit",
    "local_relation", "offset", "project", "range", "repartition", "repartition_by_expression", "replace",
    "set_op", "sort", "sql", "subquery_alias", "tail", "to_df", "to_schema",
    "unresolved_table_valued_function", "unpivot", "with_columns", "with_columns_renamed", "with_relations",
})
# fmt: on
_OTHERS: Final[Mapping[str, str]] = {
    "sample": "sample, which takes other rows each time",
    "sample_by": "sampleBy, which takes other rows each time",
    "cached_remote_relation": "a checkpoint, whose plan cannot be checked",
    "catalog": "spark.catalog; a model sees only the tables that it is given",
    "parse": "spark.read on a DataFrame; use from_json or from_csv",
}
_COMMANDS: Final[Mapping[str, str]] = {
    "create_dataframe_view": "makes a temporary view; give a table to spark.sql by name: spark.sql('… {rows}', rows=rows)",
    "checkpoint_command": "makes a checkpoint, whose plan cannot be checked",
}
_DECLARE: Final = "which it is not given; declare it in dataset.yaml, under references or upstream"
_TIMES: Final = "take times from the data"
_LEAVES: Final = frozenset({"LocalRelation", "OneRowRelation", "Range", "CTERelationRef", "UnionLoopRef"})
_CUTS: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail"})
_KEEP_ORDER: Final = _CUTS | {"Filter", "PipeOperator", "Project", "SubqueryAlias"}
_FUNCTIONS: Final = frozenset({"CallFunction", "UnresolvedFunction", "UnresolvedTableValuedFunction"})
_LINE: Final = re.compile(r"((?:[ :] {2})*)[:+]- (.*)")
_OPTIMIZED: Final = "\n\n== Optimized Logical Plan ==\n"
_NAMED: Final = re.compile(
    r"SubqueryAlias (?:spark_catalog\.)?(\S+\.\S+)|View \(`(?!_pyspark_connect_temp_view_)(.+?)`,"
)
_NOW: Final = r"\(\s*(?i:now|today|tomorrow|yesterday)(?: [^()#,]*)?"
_KINDS: Final = r"(?:date|timestamp|timestamp_ltz|timestamp_ntz)"
# As Spark shows calls, not the columns that it names after them.
_CLOCK: Final = re.compile(rf"cast{_NOW} as {_KINDS}\)|\w*{_KINDS}{_NOW}, None\b")
_VARIABLE: Final = re.compile(r"variablereference\(([\w.]+)")
_SHOWN: Final = 60
_METADATA: Final = re.compile(r"(?<![\w`])_metadata#\d+")


def undeclared(frame: DataFrame, tables: Mapping[str, DataFrame]) -> str | None:
    """The first thing that a query reads outside of these tables, or that can return other rows from equal tables.

    None if there is nothing. It costs one analysis, about 30 ms, and raises Spark's own errors.
    """
    client = cast("Any", frame).sparkSession.client
    return _problem(client, cast("Any", frame)._plan.to_proto(client), _ids(tables))  # noqa: SLF001 - no public way


def aggregates(frame: DataFrame, tables: Mapping[str, DataFrame]) -> bool:
    """Whether a query makes one row of several; `undeclared` must have found nothing. It costs one analysis as well."""
    client = cast("Any", frame).sparkSession.client
    plan = cast("Any", frame)._plan.to_proto(client)  # noqa: SLF001 - as above
    analysed, mark = _analysed(client, plan, _ids(tables), empty=False)
    return any(line.partition(" ")[0] in {"Aggregate", "Distinct"} for _, line in _nodes(analysed, mark))


def undeclared_in_request(client: Any, request: Any, tables: Mapping[str, DataFrame]) -> str | None:
    """Like `undeclared`, for what a Python model executes while it runs; anything that is not a query is named as well."""
    plan = type(request.plan)()
    plan.CopyFrom(request.plan)
    if plan.WhichOneof("op_type") == "root":
        return _problem(client, plan, _ids(tables))
    kind = plan.command.WhichOneof("command_type") or "too large a plan"
    if kind != "sql_command":
        return _COMMANDS.get(kind, f"executes {kind}; a model only returns a DataFrame")
    asked = plan.command.sql_command.input
    text = asked.with_relations.root.sql.query if asked.HasField("with_relations") else asked.sql.query
    problems = sql_problems(text, "spark.sql in a model")
    return f"spark.sql: {problems[0][1]}" if problems else None


def parts(value: Any) -> list[Any]:
    """The messages in a field's value: one message, a list or map of messages, or none in a plain value."""
    if hasattr(value, "ListFields"):
        return [value]
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        return []
    return [one for one in (value.values() if hasattr(value, "values") else value) if hasattr(one, "ListFields")]


def _ids(tables: Mapping[str, DataFrame]) -> set[int]:
    return {cast("Any", table)._plan._plan_id for table in tables.values()}  # noqa: SLF001 - no public way


def _problem(client: Any, plan: Any, given: set[int]) -> str | None:
    found = _Found()
    found.look_at(plan.root, given)
    if found.problems:
        return found.problems[0]
    analysed, mark = _analysed(client, plan, given, empty=not found.eager)
    return next(_problems_in_text(analysed, mark, found), None)


def _analysed(client: Any, plan: Any, given: set[int], *, empty: bool) -> tuple[str, str]:
    """The analysed plan of a query as text, empty if ambiguous; and the name that marks the given tables."""
    mark, there = "handed_in", plan.SerializeToString()
    while mark.encode() in there:
        mark += "_"
    _mark(plan.root, given, mark, empty=empty)
    _alias(plan.root, f"{mark}_all")
    _, _, text = client.explain_string(plan, "extended").rpartition(f"\nSubqueryAlias {mark}_all\n")
    return text.partition(_OPTIMIZED)[0] if text.count(_OPTIMIZED) == 1 else "", mark


@dataclass
class _Found:
    """What a plan names: problems, functions, bare words that may be calls, and whether Spark runs a query to plan it."""

    problems: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)
    eager: bool = False

    def look_at(self, plan: Any, given: set[int]) -> None:
        """Walk a message, but not into the relations with the ids `given`."""
        left: list[tuple[Any, str, bool]] = [(plan, "", False)]
        while left:
            message, within, ordered = left.pop()
            kind = type(message).__name__
            if kind == "Relation" and message.common.plan_id in given:
                continue
            self._take(kind, message, within, ordered=ordered)
            for named, value in message.ListFields():
                inner = message.function_name.lower() if kind in _FUNCTIONS else ""
                over = kind == "Window" and named.name == "window_function"
                inner = within if kind == "Expression" or over else inner
                has_order = bool(message.order_spec) if over else kind == "Expression" and ordered
                left += [(part, inner, has_order) for part in parts(value)]

    def _take(self, kind: str, message: Any, within: str, *, ordered: bool) -> None:
        if kind == "Relation":
            self._relation(message.WhichOneof("rel_type") or "unknown", message)
        elif kind in _FUNCTIONS:
            self._call(Call(message.function_name.lower(), within, ordered, arguments=bool(message.arguments)))
        elif kind == "ExpressionString":
            self._text(message.expression)
        elif kind == "UnresolvedAttribute":
            self.bare |= {message.unparsed_identifier.strip("`").lower()} & set(WITHOUT_BRACKETS)

    def _relation(self, kind: str, message: Any) -> None:
        if kind == "read":
            source = message.read.data_source
            name = message.read.named_table.unparsed_identifier or ", ".join(source.paths) or source.format
            self.problems.append(f"reads {name}, {_DECLARE}")
        elif kind not in _KNOWN:
            self.problems.append(
                f"uses {_OTHERS.get(kind, f'{kind}, which this project does not know to be repeatable')}"
            )
        elif kind == "deduplicate" and not message.deduplicate.all_columns_as_keys:
            self.problems.append("uses dropDuplicates by some columns, which keeps whichever row comes first")
        elif kind == "aggregate":
            self.eager |= message.aggregate.HasField("pivot") and not message.aggregate.pivot.values
        elif kind == "sql":
            self._text(message.sql.query)

    def _call(self, call: Call) -> None:
        self.called.add(call.name)
        if why := refusal(call):
            self.problems.append(f"calls {call.name}, which {why}")

    def _text(self, text: str) -> None:
        sql = SqlCalls(text)
        if has_nested_comment(text):
            self.problems.append("has a comment inside a comment; close the first one earlier")
        for call in sql.calls():
            self._call(call)
        self.problems += [f"reads the clock by {literal}; {_TIMES}" for literal in sql.clocks()]
        self.bare |= set(sql.bare_words())


def _mark(message: Any, given: set[int], mark: str, *, empty: bool) -> None:
    """Give every given relation the name `mark`, and no rows if it is to be `empty`."""
    left = [message]
    while left:
        found = left.pop()
        if type(found).__name__ == "Relation" and found.common.plan_id in given:
            if empty:
                whole = type(found)()
                whole.CopyFrom(found)
                found.Clear()
                found.filter.input.CopyFrom(whole)
                found.filter.condition.literal.boolean = False
            _alias(found, mark)
        else:
            left += [part for _, value in found.ListFields() for part in parts(value)]


def _alias(relation: Any, name: str) -> None:
    whole = type(relation)()
    whole.CopyFrom(relation)
    relation.Clear()
    relation.subquery_alias.input.CopyFrom(whole)
    relation.subquery_alias.alias = name


def _problems_in_text(analysed: str, mark: str, found: _Found) -> Iterator[str]:
    """Problems in the analysed plan, such as relations that were not given."""
    if not analysed:
        yield "has texts that look like a Spark plan; write them in another way"
        return
    nodes = _nodes(analysed, mark)
    for at, (depth, line) in enumerate(nodes):
        below = nodes[at + 1][0] if at + 1 < len(nodes) else 0
        kind = line.partition(" ")[0]
        if below <= depth and kind not in _LEAVES | {mark}:
            yield f"reads {_name_of(nodes, at)}, {_DECLARE}"
        elif kind in _CUTS and not line.endswith("Limit 0") and not _is_sorted(nodes, at):
            yield "takes some rows by a limit or an offset without an order; sort them (ORDER BY)"
        elif kind == "Sample":
            yield "takes a sample, which has other rows each time"
    yield from _calls_in_text("\n".join(line for _, line in nodes), found)


def _calls_in_text(own: str, found: _Found) -> Iterator[str]:
    """Calls in the model's own part of the plan that only analysis shows."""
    for word in sorted(found.bare):
        if any(f"{shown}(" in own for shown in WITHOUT_BRACKETS[word]):
            yield f"calls {word}, which {refusal(Call(word))}"
    for name in sorted(found.called):
        if re.search(rf"\bspark_catalog\.\w+\.{re.escape(name)}\(", own):
            yield f"calls {name}, which {refusal(Call(f'spark_catalog.{name}'))}"
    if clock := _CLOCK.search(own):
        yield f"reads the clock by {clock[0]}; {_TIMES}"
    if variable := _VARIABLE.search(own):
        yield f"reads the variable {variable[1]}; write its value"
    if _METADATA.search(own):
        yield "reads _metadata, which says how rows lie in files"


def _nodes(tree: str, mark: str) -> list[tuple[int, str]]:
    """Depth and text of each node of a plan; a given table is one node, named `mark`."""
    nodes: list[tuple[int, str]] = [(0, "")]
    skipped: int | None = None
    for line in tree.split("\n"):
        match = _LINE.fullmatch(line)
        depth, text = (len(match[1]) // 3 + 1, match[2]) if match else (None, line)
        if skipped is not None and (depth is None or depth > skipped):
            continue
        if depth is None:  # a text of several lines
            nodes[-1] = (nodes[-1][0], f"{nodes[-1][1]}\n{text}")
            continue
        handed_in = text == f"SubqueryAlias {mark}"
        skipped = depth if handed_in else None
        nodes.append((depth, mark if handed_in else text))
    return nodes[1:]


def _is_sorted(nodes: list[tuple[int, str]], at: int) -> bool:
    """Whether the rows that a node cuts come from a sort of all rows."""
    depth = nodes[at][0]
    for below, line in nodes[at + 1 :]:
        kind = line.partition(" ")[0]
        if below == depth + 1:
            if kind not in _KEEP_ORDER:
                return kind == "Sort" and line.endswith(", true")
            depth = below
        elif below <= depth:
            break
    return False


def _name_of(nodes: list[tuple[int, str]], at: int) -> str:
    """The model's name for the relation at the end of a branch: the outermost name above it, or its kind."""
    depth, line = nodes[at]
    name = ""
    for above, text in reversed(nodes[:at]):
        if above < depth:
            depth = above
            if match := _NAMED.match(text):
                name = match[1] or match[2]
    kind = line.rpartition(" ")[2]
    return name or (f"files of the format {kind}" if kind.isalpha() else line[:_SHOWN])
