"""The benchmark's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backfill_assets.cli.output import say, table
from benchmarks.results import Elsewhere, Growth, Pass, Results
from benchmarks.stages import ORCHESTRATION, STAGES, WORK

_MEGA = 1_000_000


def show(results: Results) -> None:
    """Print everything that was measured."""
    pipeline = results.pipeline
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    say(f"{results.rows:,} rows in {pipeline.days} days of TPC-H, scale factor {results.scale:g}; {machine}")
    passes = (*results.floors, pipeline, results.correction, results.by_the_day)
    _table_of_stages(passes)
    table(("figure", "value"), _figures(results), f"{pipeline.days} days, {pipeline.runs} runs")
    if results.growth:
        _table_of_growth(results.sizes)
    if results.elsewhere:
        here = Elsewhere("a folder", pipeline, results.correction, results.release)
        _table_of_places((here, *results.elsewhere))


def _table_of_growth(sizes: Sequence[Growth]) -> None:
    columns = [_of_size(size) for size in sizes]
    rows = [(what, *(column[what] for column in columns)) for what in columns[0]]
    table(("figure", *(f"{size.pipeline.days} days" for size in sizes)), rows, "Growth")


def _table_of_places(places: Sequence[Elsewhere]) -> None:
    rows = [
        (
            one.name,
            *(f"{p.wall:.1f} s, {p.cpu.spark + p.cpu.workers:.1f} s" for p in (one.pipeline, one.correction)),
            f"{one.release.publish_seconds:.2f} s",
            f"{one.release.rollback_seconds:.2f} s",
        )
        for one in places
    ]
    table(("place", "pipeline: wall, CPU", "correction: wall, CPU", "publish", "rollback"), rows, "Places")


def _of_size(size: Growth) -> dict[str, str]:
    pipeline, release = size.pipeline, size.release
    stages = {f"{stage}, s": f"{pipeline.seconds((stage,)):.1f}" for stage in WORK}
    bytes_written = sum(b.data for b in size.written.values()), sum(b.logs for b in size.written.values())
    return {
        "runs": str(pipeline.runs),
        "complete pipeline, s": f"{pipeline.wall:.1f}",
        "ms per day": f"{pipeline.wall / pipeline.days * 1000:.0f}",
        **stages,
        "orchestration, s": f"{pipeline.seconds(ORCHESTRATION):.1f}",
        "checks in parts of raw, staging, shadow": f"{pipeline.validation_of_build:.0%}",
        "share of checks": f"{pipeline.share(('checks',)):.0%}",
        "share of orchestration": f"{pipeline.share(ORCHESTRATION):.0%}",
        "CPU of Spark, of Dagster, s": f"{pipeline.cpu.spark:.1f}, {pipeline.cpu.workers:.1f}",
        "written: data, logs, MB": ", ".join(f"{written / _MEGA:.1f}" for written in bytes_written),
        "bytes copied by publish": str(release.bytes_copied),
        "publish, s": f"{release.publish_seconds:.2f}",
        "rollback, s": f"{release.rollback_seconds:.2f}",
    }


def _table_of_stages(passes: Iterable[Pass]) -> None:
    for one in passes:
        rows = [
            (
                cost.stage, f"{cost.wall:.1f}", f"{cost.wall / one.wall:.0%}",
                f"{cost.cpu.spark:.1f}", f"{cost.cpu.workers:.1f}",
            )
            for stage in STAGES
            for cost in one.stages
            if cost.stage == stage
        ]  # fmt: skip
        total = ("all", f"{one.wall:.1f}", "100%", f"{one.cpu.spark:.1f}", f"{one.cpu.workers:.1f}")
        title = f"{one.name}: {one.days} days, {one.runs} runs"
        table(("stage", "wall s", "share", "Spark CPU s", "Dagster CPU s"), [*rows, total], title)


def _figures(results: Results) -> list[tuple[str, str]]:
    pipeline, release = results.pipeline, results.release
    written = [
        (f"{layer}: bytes written", f"{b.data / _MEGA:.1f} MB in {b.files} data files, {b.logs / _MEGA:.1f} MB of logs")
        for layer, b in results.written.items()
    ]
    return [
        ("complete pipeline", f"{pipeline.wall:.1f} s, {pipeline.wall / pipeline.days * 1000:.0f} ms per day"),
        ("floor (mean of before and after)", f"{results.floor_seconds:.1f} s"),
        ("complete pipeline in times the floor", f"{results.times_floor:.2f}"),
        ("correction of the published days", f"{results.correction.wall:.1f} s"),
        (
            f"a run per day (extrapolated from {results.sampled} of {pipeline.days} days)",
            f"{results.extrapolated_seconds:.0f} s",
        ),
        ("pipeline faster than a run per day by", f"{results.extrapolated_seconds / pipeline.wall:.0f} times"),
        ("checks in parts of raw, staging, shadow", f"{pipeline.validation_of_build:.0%}"),
        (
            "the same of the correction, which compares all rows with published ones",
            f"{results.correction.validation_of_build:.0%}",
        ),
        ("share of checks", f"{pipeline.share(('checks',)):.0%}"),
        ("share of orchestration", f"{pipeline.share(ORCHESTRATION):.0%}"),
        ("CPU of Spark, of Dagster", f"{pipeline.cpu.spark:.1f} s, {pipeline.cpu.workers:.1f} s"),
        *written,
        ("bytes copied by publish", str(max(release.bytes_copied, results.first_release.bytes_copied))),
        (f"publish of {release.days} days, evidence checked", f"{release.publish_seconds:.2f} s"),
        (f"rollback of {release.days} days, files checked", f"{release.rollback_seconds:.2f} s"),
        ("files swapped by each", str(release.files_swapped)),
    ]
