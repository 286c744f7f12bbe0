"""`gqe plan`: what a build and its serving will need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from gqe.cli.common import app, output_file, print_table

if TYPE_CHECKING:
    from gqe.planning.plan import CapacityPlan


@app.command(
    epilog="Examples: gqe plan --items 100M --dim 2048 --levels 2 --k 44 --nodes 8xH200\n\n"
    "gqe plan --items 20M --dim 512 --nodes 4xcpu:32 --graph approximate --no-dba"
)
def plan(
    items: Annotated[str, Option(help="How many: 200k, 100M, 1B.")],
    dim: Annotated[int, Option(help="Dimension of the embeddings.")],
    nodes: Annotated[str, Option(help="COUNTxKIND: H200, H100, A100, L40S, L4 or cpu:CORES.")],
    levels: Annotated[int, Option(help="L, levels of the expander.")] = 2,
    k: Annotated[int, Option(help="Neighbours that each level aggregates.")] = 32,
    method: Annotated[str, Option("--method", "-m", help="universal, gqe, alpha or aqe.")] = "universal",
    graph: Annotated[str, Option(help="exact, or approximate (recall 0.95, on CPUs).")] = "exact",
    dtype: Annotated[str, Option(help="Of stored levels: float32, float16, int8.")] = "float16",
    dba: Annotated[bool, Option("--dba/--no-dba", help="Whether the database is augmented.")] = True,
    shards: Annotated[int | None, Option(help="Number of parts; by default as the build chooses.")] = None,
    network: Annotated[float | None, Option(help="Gbit/s per node; 25 with a GPU, 10 without.")] = None,
    contrast: Annotated[float | None, Option(help="Weight of negatives; by default the method's.")] = None,
    rounds: Annotated[int, Option(help="How often a query is expanded.")] = 1,
    checks: Annotated[bool, Option("--checks", help="Also print the error on every measured run.")] = False,
    file: Annotated[Path | None, Option("--json", help="Also write everything to this file.")] = None,
) -> None:
    """Memory, disk, network, operations and time of every stage, from a model checked on measured runs."""
    from gqe.planning.hardware import parse_nodes
    from gqe.planning.job import Job
    from gqe.planning.plan import plan as make_plan
    from gqe.planning.quantities import parse_count

    job = Job(parse_count("--items", items), dim, levels, k, method, graph, dtype, dba, contrast, rounds)
    if file is not None:
        output_file(file)
    planned = make_plan(job, parse_nodes(nodes).with_network(network), shards)
    _print_stages(planned)
    _print_verdict(planned)
    _print_error(planned, checks)
    if file is not None:
        import json

        from gqe.formats.atomic import atomic_path

        with atomic_path(file) as temporary:
            temporary.write_text(json.dumps(planned.as_json(), indent=2) + "\n", encoding="utf-8")


def _print_stages(plan: CapacityPlan) -> None:
    from gqe.planning.quantities import as_bytes, as_operations, as_time

    job, sharding = plan.job, plan.sharding
    dba = ", augmented" if job.dba else ""
    options = f", {job.options}" if str(job.options) else ""
    typer.echo(
        f"{job.items:,} x {job.dim} in {job.dtype}, {job.method} with L = {job.levels}, K = {job.k}{options}"
        f"{dba}, on {plan.nodes}: {sharding.shards} shards of {sharding.rows:,.0f} rows\n"
    )
    gpu = plan.nodes.kind.gpu
    rows = []
    for stage, seconds, bound in plan.stages:
        memory = [as_bytes(stage.memory)] if gpu else []
        held = [*memory, as_bytes(stage.host_memory), as_bytes(stage.disk), as_bytes(stage.network)]
        rows.append([stage.name, bound, *held, as_operations(stage.flops), as_time(seconds)])
    most = [max(timed.stage.memory for timed in plan.stages)] if gpu else []
    most.append(max(timed.stage.host_memory for timed in plan.stages))
    totals = [*map(as_bytes, (*most, plan.disk, plan.network)), as_operations(plan.flops)]
    rows.append(["build", "", *totals, as_time(plan.seconds)])
    served = plan.serving
    held = [as_bytes(served.memory), as_bytes(served.host_memory)] if gpu else [as_bytes(served.memory)]
    for batch, seconds in plan.latency.items():
        name = "serving, one query" if batch == 1 else f"serving, {batch} queries"
        rows.append([name, "", *held, "", as_bytes(batch * served.network), "", as_time(seconds)])
    shown = ["GPU memory", "host memory"] if gpu else ["host memory"]
    columns = ["on each node", "waits for", *shown, "disk", "network", "FLOPs of all", "time"]
    print_table(columns, rows, left=2)


def _print_verdict(plan: CapacityPlan) -> None:
    from gqe.planning.quantities import as_bytes, as_time

    hours = plan.seconds * plan.nodes.count
    typer.echo(f"\nindex: {as_bytes(plan.disk * plan.nodes.count)}; build: {as_time(hours)} of one node")
    if plan.faster is not None:
        typer.echo(f"faster: with --shards {plan.faster[0]} the build takes {as_time(plan.faster[1])}")
    if plan.fits:
        typer.echo(f"fits: yes, on {plan.nodes}")
    else:
        typer.echo("fits: no; " + "; ".join(map(str, plan.shortfalls)))
        typer.echo("remedy: " + ", or ".join(plan.remedies))
    used = ", ".join(f"{kind} {share:.3g}" for kind, share in plan.shares.items() if kind != "steps")
    typer.echo(f"shares of the peak: {used}")
    if plan.assumed:
        typer.echo(f"assumed, not measured: {', '.join(plan.assumed)}")


def _print_error(plan: CapacityPlan, runs: bool) -> None:
    """The error of the model, which is the same for all plans; that of each run if asked for."""
    from gqe.planning.checks import model_error
    from gqe.planning.quantities import as_bytes, as_time

    more = "; those marked * set its shares" if runs else "; --checks prints them"
    typer.echo(f"\nerror of the model on measured runs{more}")
    if runs:
        rows = []
        for check in plan.checks:
            shown = as_time if check.unit == "s" else as_bytes
            name = f"* {check.what}" if check.fits else check.what
            rows.append([name, shown(check.measured), shown(check.modelled), f"{check.error:+.0%}"])
        typer.echo()
        print_table(["run", "measured", "model", "error"], rows)
        typer.echo()
    for unit, what in (("s", "time"), ("B", "memory and disk")):
        off = model_error(plan.checks, unit)
        typer.echo(
            f"{what}: {off.runs} checks, off by a factor of {off.typical:.2f} on average (geometric mean),"
            f" {off.worst:.2f} at worst ({off.worst_of})"
        )
