"""`python -m bench run|quick|report`: measure, compare with the committed ratios, write the page."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import records
from bench.plan import BENCHES, PLANS, Plan


def main() -> int:
    """Run one command; the exit code."""
    arguments = _arguments()
    if arguments.command == "report":
        from bench.report import write_report

        write_report(arguments.results)
        return 0
    plan = PLANS["quick" if arguments.command == "quick" else arguments.plan]
    machine, measured = _measure(plan, arguments)
    if arguments.command == "quick":
        from bench.regression import compare

        return compare(measured, commit=arguments.commit)
    if arguments.merge and arguments.results.exists():
        measured = records.merged(records.read(arguments.results)["records"], measured)
    records.write(arguments.results, machine, measured)
    print(f"{len(measured)} records in {arguments.results}")
    return 0


def _measure(plan: Plan, arguments: argparse.Namespace) -> tuple[dict[str, object], list[records.Record]]:
    from bench.harness.machine import machine_facts
    from bench.runner import available, run_plan

    machine = machine_facts()
    systems = available(arguments.systems.split(",") if arguments.systems else plan.systems)
    benches = arguments.benches.split(",") if arguments.benches else plan.benches
    return machine, run_plan(plan, systems, benches)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure and write the results file")
    run.add_argument("--plan", choices=sorted(PLANS), default="full")
    run.add_argument("--merge", action="store_true", help="keep the records that are not measured again")
    quick = commands.add_parser("quick", help="five minutes: ratios to a peer beside the committed ones")
    quick.add_argument("--commit", action="store_true", help="make this run's ratios the committed ones")
    report = commands.add_parser("report", help="write docs/performance.md and its plots from the results file")
    for command in (run, quick):
        command.add_argument("--systems", default="", help="only these, with commas between")
        command.add_argument("--benches", default="", help=f"only these of {', '.join(BENCHES)}")
    for command in (run, report):
        command.add_argument("--results", type=Path, default=records.LATEST)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
