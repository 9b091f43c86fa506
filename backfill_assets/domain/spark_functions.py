"""Spark functions that a model may not call: with them, equal inputs give other rows.

Every function of Spark was looked at (a test holds the list to the server). Those that are not named here depend on
their arguments alone. What depends on order only where values are equal (`row_number`, `max_by`, `mode`) cannot be told
by its name: the certificate finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Call:
    """A function that a model calls, by its name in lower case.

    `within` is the function that takes its result as it is, `ordered` says whether it goes over a window, or a group,
    that has an order, and `arguments` whether it has any.
    """

    name: str
    within: str = ""
    ordered: bool = False
    arguments: bool = True


_CHANCE: Final = "gives something else each time"
_CLOCK: Final = "gives the time of the run; take times from the data"
_PLACE: Final = "tells who runs the model and where"
_FILES: Final = "depends on how the rows lie in files and partitions"
_OUTSIDE: Final = "reads what was not handed to the model"
_CLOSE: Final = (
    "gives an estimate that depends on how the rows lie in partitions; take an exact function, such as percentile"
)
_ANY: Final = (
    "takes whichever row comes first; give it an order (OVER (… ORDER BY …)), or take min, max, min_by or max_by"
)
_UNSORTED: Final = (
    "gives its values in any order; sort them (sort_array(…)), or give them an order (OVER (… ORDER BY …))"
)
_UNJOINED: Final = "joins its values in any order; give them one: WITHIN GROUP (ORDER BY …)"
_NAMED: Final = "names what it reads or calls while the model runs; write the name itself"
_OF_CATALOG: Final = "is a function of the catalog, which anybody may change; write it out"


def _of(why: str, names: str) -> Mapping[str, str]:
    return dict.fromkeys(names.split(), why)


_REFUSED: Final[Mapping[str, str]] = {
    **_of(_CHANCE, "aes_encrypt rand randn random randstr shuffle uniform uuid"),
    **_of(_CLOCK, "curdate current_date current_time current_timestamp localtimestamp now"),
    **_of(
        _PLACE, "current_catalog current_database current_path current_schema current_user session_user user version"
    ),
    **_of(_FILES, "input_file_block_length input_file_block_start input_file_name"),
    **_of(_FILES, "monotonically_increasing_id spark_partition_id"),
    **_of(_OUTSIDE, "from_protobuf java_method python_worker_logs reflect table_changes table_changes_by_path"),
    **_of(_OUTSIDE, "to_protobuf try_reflect"),
    **_of(_CLOSE, "approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine histogram_numeric"),
    **_of(_CLOSE, "hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float"),
    **_of(_CLOSE, "kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float percentile_approx"),
    **_of(_CLOSE, "theta_intersection_agg theta_sketch_agg theta_union_agg tuple_intersection_agg_double"),
    **_of(_CLOSE, "tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer"),
    **_of(_CLOSE, "tuple_union_agg_double tuple_union_agg_integer"),
    "identifier": _NAMED,
}
_REFUSED_WITHOUT_ORDER: Final[Mapping[str, str]] = {
    **_of(_ANY, "any_value first first_value last last_value nth_value"),
    **_of(_UNSORTED, "array_agg collect_list collect_set"),
    **_of(_UNJOINED, "listagg string_agg"),
}
_ORDER_FREE: Final = frozenset(
    {"array_contains", "array_max", "array_min", "array_size", "array_sort", "cardinality", "size", "sort_array"}
)
"""What makes nothing of the order of an array."""

WITHOUT_BRACKETS: Final[Mapping[str, tuple[str, ...]]] = {
    "current_date": ("current_date",),
    "current_path": ("current_path",),
    "current_time": ("current_time",),
    "current_timestamp": ("current_timestamp",),
    "current_user": ("current_user",),
    "session_user": ("session_user", "current_user"),
    "user": ("user", "current_user"),
}
"""Functions that a bare word calls where no column has its name, and how Spark's plans may show them."""


def refusal(call: Call) -> str | None:
    """Why a model must not call it, to follow its name; none if it may."""
    *qualifiers, name = call.name.split(".")
    if qualifiers not in ([], ["builtin"], ["system", "builtin"]):
        return _OF_CATALOG
    if name == "unix_timestamp" and not call.arguments:
        return _CLOCK
    why = _REFUSED_WITHOUT_ORDER.get(name)
    if why is not None:
        fine = call.ordered or (why == _UNSORTED and call.within in _ORDER_FREE)
        return None if fine else why
    return _REFUSED.get(name)
