"""L11: one at a time. A message that is due now, from the send to user code; and, for DejaQ, transactions of one
message in and one message out, many at once. Redis has no counterpart of the second.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.benches import latency, transactions
from bench.harness.apart import apart
from bench.harness.stage import Outcome, staged
from bench.plan import Plan
from bench.systems.base import System
from bench.systems.dejaq_broker import DejaqServer


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """An outcome for the latency, and one for transactions."""
    for outcome in latency.run(system, plan):
        yield Outcome(shape={"work": "latency"}, figures=outcome.figures, actual=outcome.actual)
    with staged(system) as stage:
        if isinstance(stage.server, DejaqServer):
            count = plan.sizes.transactions
            figures = apart(transactions.measure, stage.server.address, stage.server.pid, count, 1)
            shape = {"work": "transactions", "at_once": transactions.CONCURRENCY}
            yield Outcome(shape=shape, figures=figures, actual={"messages": count})
