"""L9: change of mind. Get, move, edit and cancel pending messages by ids that are drawn at random."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.crew import span_ns
from bench.harness.figures import Figures, per_second, us_each
from bench.harness.orders import CHANGES_BY_ID, ChangeById
from bench.harness.stage import Outcome, staged
from bench.harness.timed import GRACE_SECONDS, load_pending
from bench.plan import Plan
from bench.systems.base import System
from bench.workloads.reminders import MONTH_MS

# (ids per call, calls in flight)
CALLS = ((1_000, 4), (1, 64))


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per batch size, all on one server."""
    sizes = plan.sizes
    with staged(system) as stage:
        loaded = load_pending(stage, sizes.by_id_pending, sizes.load_seconds_max, scatter_ms=MONTH_MS)
        cancelled_from, half = 0, loaded.count // 2
        for batch, in_flight in CALLS:
            figures: Figures = {}
            wanted = sizes.by_id_single if batch == 1 else sizes.by_id_batched
            # The two batch sizes cancel from different halves, so that every id that is drawn is pending.
            count = min(wanted, half) // batch * batch
            if not count:
                raise RuntimeError(f"only {loaded.count} messages were created in time, too few for {batch} per call")
            orders = [
                ChangeById(
                    kind=kind,
                    count=count,
                    batch=batch,
                    in_flight=in_flight,
                    first=cancelled_from,
                    population=half,
                    seconds_max=sizes.phase_seconds_max,
                )
                for kind in CHANGES_BY_ID
            ]
            with stage.crew() as crew:
                # The processes start together, because that takes longer than small sizes do; they work in turn.
                for order, number in zip(orders, crew.add(*orders), strict=True):
                    cpu_before = stage.cpu_seconds()
                    crew.go([number])
                    done = crew.wait([number], sizes.phase_seconds_max + GRACE_SECONDS)[0]
                    figures[f"{order.kind}_per_s"] = per_second(done.count, span_ns([done]))
                    cpu = stage.cpu_seconds() - cpu_before
                    figures[f"{order.kind}_cpu_us_per_message"] = us_each(cpu, done.count)
            cancelled_from += half
            yield Outcome(
                shape={"batch": batch, "in_flight": in_flight},
                figures=figures | {"rss_mb": stage.rss_mb()},
                actual={"pending": loaded.count, "changes": count},
            )
