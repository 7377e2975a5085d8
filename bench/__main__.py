"""`python -m bench run|quick|report`: measure, compare with the committed ratios, or write the page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench import records
from bench.harness.server import exit_at_sigterm
from bench.plan import BENCHES, PLANS, Plan
from bench.workloads.names import WORKLOADS, expanded
from bench.workloads.sizes import changed


def main() -> int:
    """Run one command; returns the exit code."""
    exit_at_sigterm()
    arguments = _arguments()
    if arguments.command == "report":
        from bench.report import write_report

        write_report(arguments.results)
        return 0
    plan = PLANS["quick" if arguments.command == "quick" else arguments.plan]
    if arguments.repeats:
        plan = replace(plan, repeats=arguments.repeats, long_repeats=arguments.repeats)
    plan = replace(plan, sizes=changed(plan.sizes, arguments.set))
    return _quick(plan, arguments) if arguments.command == "quick" else _run(plan, arguments)


def _quick(plan: Plan, arguments: argparse.Namespace) -> int:
    from bench.regression import compare

    measured = [record for found in _measured(plan, arguments) for record in found]
    return compare(measured, commit=arguments.commit)


def _run(plan: Plan, arguments: argparse.Namespace) -> int:
    from bench.harness.machine import machine_facts

    machine = machine_facts()
    kept = records.read(arguments.results)["records"] if arguments.merge and arguments.results.exists() else []
    for found in _measured(plan, arguments):
        kept = records.merged(kept, found)
        records.write(arguments.results, machine, kept)
    print(f"{len(kept)} records in {arguments.results}")
    return 0


def _measured(plan: Plan, arguments: argparse.Namespace) -> Iterator[list[records.Record]]:
    from bench.runner import available, run_plan

    systems = available(arguments.systems.split(",") if arguments.systems else plan.every_system)
    benches = expanded(arguments.benches.split(",")) if arguments.benches else plan.benches
    return run_plan(plan, systems, benches)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure and write the results file")
    run.add_argument("--plan", choices=sorted(PLANS), default="full")
    run.add_argument("--merge", action="store_true", help="keep the records that are not measured again")
    quick = commands.add_parser("quick", help="five minutes: ratios to a peer, compared with the committed ratios")
    quick.add_argument("--commit", action="store_true", help="commit the ratios of this run")
    report = commands.add_parser("report", help="write docs/performance.md and its plots from the results file")
    for command in (run, quick):
        command.add_argument("--systems", default="", help="only these systems, separated by commas")
        command.add_argument("--repeats", type=int, help="the number of repeats of every bench")
        command.add_argument(
            "--benches",
            default="",
            help=f"only these benches, of {', '.join(BENCHES)}; `workloads` means {', '.join(WORKLOADS)}, and these "
            "numbers are names too",
        )
        command.add_argument(
            "--set", action="append", default=[], metavar="SIZE=N", help="another size, such as uptime_messages=1000000"
        )
    for command in (run, report):
        command.add_argument("--results", type=Path, default=records.LATEST)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
