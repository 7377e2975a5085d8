"""`dejaq rights`: adds, lists, removes and explains the rules that allow and deny."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.cli.terminal.output import iso
from dejaq.errors import Code

if TYPE_CHECKING:
    from dejaq.sdk.admin.rights import RightsDecision, RightsQuota, RightsRule
    from dejaq.sdk.client import Client

QUOTA_COLUMNS = ("principal", "topics", "topics_used", "rate", "pending", "pending_used", "bytes", "bytes_used")
COLUMNS = ("id", "effect", "principal", "operations", "topic", "group", "made_by", "made_at")
OPERATIONS = "create, inspect, read, produce, change, consume, schedule, admin or operate"


@click.group(cls=Group)
def rights() -> None:
    """Allow and deny what callers may do, and explain decisions.

    PRINCIPAL is user:NAME, group:NAME, key:ID, certificate:NAME or '*'. OPERATIONS is a list with commas of create,
    inspect, read, produce, change, consume, schedule, admin and operate. TOPIC is a topic, or a prefix such as 'mail*'.
    Deny wins; without a rule, no. The creator of a topic has every right on it, and so has a user on '~USER/...'.
    """


def _values(rule: RightsRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "effect": rule.effect,
        "principal": rule.principal,
        "operations": ",".join(rule.operations),
        "topic": rule.topic,
        "group": rule.group,
        "made_by": rule.made_by,
        "made_at": iso(rule.made_ms),
    }


def _line(rule: RightsRule) -> str:
    group = f" as group {rule.group}" if rule.group else ""
    return f"{rule.effect} {rule.principal} {','.join(rule.operations)} on {rule.topic}{group}"


def _put(invocation: Invocation, effect: str, principal: str, operations: str, topic: str, group: str) -> None:
    async def work(client: Client) -> RightsRule:
        rules = client.rights()
        put = rules.allow if effect == "allow" else rules.deny
        return await put(principal, operations.split(","), topic, group=group)

    rule = invocation.run(work)
    invocation.output.record(_values(rule), f"rule {rule.id}: {_line(rule)}")


@rights.command()
@click.argument("principal")
@click.argument("operations")
@click.argument("topic")
@click.option("--group", default="", metavar="NAME", help="Only as this producer group (produce and change).")
@pass_invocation
def allow(invocation: Invocation, /, principal: str, operations: str, topic: str, group: str) -> None:
    """Allow PRINCIPAL the OPERATIONS on TOPIC; every broker applies it within a second."""
    _put(invocation, "allow", principal, operations, topic, group)


@rights.command()
@click.argument("principal")
@click.argument("operations")
@click.argument("topic")
@click.option("--group", default="", metavar="NAME", help="Only as this producer group (produce and change).")
@pass_invocation
def deny(invocation: Invocation, /, principal: str, operations: str, topic: str, group: str) -> None:
    """Deny PRINCIPAL the OPERATIONS on TOPIC, whatever other rules allow; open sessions end."""
    _put(invocation, "deny", principal, operations, topic, group)


@rights.command(name="list")
@click.option("--principal", default="", metavar="PRINCIPAL", help="Only rules for this principal.")
@click.option("--topic", default="", metavar="TOPIC", help="Only rules that match this topic.")
@pass_invocation
def list_rules(invocation: Invocation, /, principal: str, topic: str) -> None:
    """List the rules: all of them for operators, otherwise those about you and those that you made."""

    async def work(client: Client) -> list[RightsRule]:
        return list(await client.rights().list(principal=principal, topic=topic))

    rows = [_values(rule) for rule in invocation.run(work)]
    invocation.output.table(rows, COLUMNS, empty="no rules; add one with `dejaq rights allow`")


@rights.command()
@click.argument("rule_id", metavar="ID")
@pass_invocation
def remove(invocation: Invocation, /, rule_id: str) -> None:
    """Remove the rule ID; sessions that need it end."""
    invocation.hints[Code.NOT_FOUND] = "nothing was removed; `dejaq rights list` shows the rules"

    async def work(client: Client) -> RightsRule:
        return await client.rights().remove(rule_id)

    rule = invocation.run(work)
    invocation.output.record(_values(rule), f"removed rule {rule.id}: {_line(rule)}")


@rights.command()
@click.argument("operation")
@click.argument("topic", default="*")
@click.option("--group", default="", metavar="NAME", help="As this producer group. Default: as every group.")
@click.option(
    "--as",
    "principals",
    multiple=True,
    metavar="PRINCIPAL",
    help="Another caller, such as user:alice; give group:NAME for each of its groups. Needs the right `operate`.",
)
@pass_invocation
def check(invocation: Invocation, /, operation: str, topic: str, group: str, principals: tuple[str, ...]) -> int:
    """Explain whether you may do OPERATION on TOPIC: the rule that decides, or what is missing.

    The exit code is 1 when it is not allowed.
    """

    async def work(client: Client) -> RightsDecision:
        return await client.rights().check(operation, topic, group=group, principals=principals)

    decision = invocation.run(work)
    verdict = "allowed" if decision.allowed else "not allowed"
    note = "" if decision.enforced else "; this broker checks no rights, so everything is allowed"
    invocation.output.record(
        {
            "allowed": decision.allowed,
            "reason": decision.reason,
            "enforced": decision.enforced,
            "rule": _values(decision.rule) if decision.rule is not None else None,
        },
        f"{verdict}: {decision.reason}{note}",
    )
    return 0 if decision.allowed else 1


@rights.group(cls=Group)
def quota() -> None:
    """Limit what each caller may have and do."""


@quota.command(name="set")
@click.argument("principal")
@click.option("--topics", type=click.IntRange(1), default=0, help="Topics that it may create.")
@click.option("--rate", type=click.IntRange(1), default=0, help="Messages per second that it may create or change.")
@click.option("--pending", type=click.IntRange(1), default=0, help="Messages that its topics may have.")
@click.option("--bytes", "size", type=click.IntRange(1), default=0, help="Bytes that its topics may have.")
@pass_invocation
def set_quota(invocation: Invocation, /, principal: str, topics: int, rate: int, pending: int, size: int) -> None:
    """Set the quota of each caller that PRINCIPAL means, in place of the earlier one.

    The most specific quota counts: of the user, key or certificate, then of a group, then of '*'.
    """
    if not (topics or rate or pending or size):
        raise click.UsageError("Give a limit: --topics, --rate, --pending or --bytes.")

    async def work(client: Client) -> RightsQuota:
        return await client.rights().set_quota(principal, topics=topics, rate=rate, pending=pending, bytes=size)

    made = invocation.run(work)
    limits = {
        "topics": made.topics,
        "messages per second": made.rate,
        "pending messages": made.pending,
        "bytes": made.bytes,
    }
    named = ", ".join(f"{value:,} {name}" for name, value in limits.items() if value)
    invocation.output.record(asdict(made), f"quota of {made.principal}: {named}")


@quota.command(name="list")
@pass_invocation
def list_quotas(invocation: Invocation) -> None:
    """List the quotas and what is used of them: all of them for operators, otherwise yours."""

    async def work(client: Client) -> list[RightsQuota]:
        return list(await client.rights().quotas())

    rows = [asdict(one) for one in invocation.run(work)]
    invocation.output.table(rows, QUOTA_COLUMNS, numbers=QUOTA_COLUMNS[1:], empty="no quotas")


@quota.command(name="remove")
@click.argument("principal")
@pass_invocation
def remove_quota(invocation: Invocation, principal: str) -> None:
    """Remove the quota of PRINCIPAL."""

    async def work(client: Client) -> RightsQuota:
        return await client.rights().set_quota(principal)

    removed = invocation.run(work)
    invocation.output.record(asdict(removed), f"{removed.principal} has no quota of its own")
