"""The calls that the security log records when they succeed, and what each is about. Refusals are always recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dejaq.broker.rights.audit import SecurityAudit
from dejaq.domain.context import CallContext

# The event, and its target; no target for a call that changed nothing.
_Describe = Callable[[Any, Any], str | None]


def _rule(answer: Any) -> str:
    rule = answer.rule
    group = f" as group {rule.group}" if rule.group else ""
    return f"{rule.id}: {rule.effect} {rule.principal} {','.join(rule.operations)} on {rule.topic}{group}"


AUDITED: dict[str, tuple[str, _Describe]] = {
    "Overseer.CreateTopic": ("topic_created", lambda request, answer: request.name if answer.created else None),
    "Overseer.EditTopic": (
        "topic_edited",
        lambda request, answer: f"{request.name}: {', '.join(f.name for f, _ in request.settings.ListFields())}",
    ),
    "Overseer.DeleteTopic": ("topic_deleted", lambda request, answer: request.name),
    "Overseer.RekeyTopic": ("key_replaced", lambda request, answer: f"{request.name}: {answer.key}"),
    "Overseer.Checkpoint": ("backup_made", lambda request, answer: answer.path),
    "Carrier.Redrive": ("redriven", lambda request, answer: f"{request.topic} to {request.target}: {len(request.ids)}"),
    "Carrier.Purge": ("purged", lambda request, answer: f"{request.topic}: {len(request.ids)}"),
    "Cron.Put": (
        "schedule_put",
        lambda request, answer: f"{request.topic}: {', '.join(one.name for one in request.schedules)}",
    ),
    "Cron.Change": ("schedule_changed", lambda request, answer: f"{request.topic}: {request.name}"),
    "Access.CreateKey": ("key_made", lambda request, answer: f"{answer.key.id} for {answer.key.user or 'no user'}"),
    "Access.RevokeKey": ("key_revoked", lambda request, answer: request.id),
    "Access.EndSession": ("session_ended", lambda request, answer: request.id),
    "Rights.Put": ("rule_added", lambda request, answer: _rule(answer) if answer.created else None),
    "Rights.SetQuota": (
        "quota_set",
        lambda request, answer: (
            f"{answer.quota.principal}: topics {answer.quota.topics}, rate {answer.quota.rate}, "
            f"pending {answer.quota.pending}, bytes {answer.quota.bytes}"
        ),
    ),
    "Log.Rollback": ("log_rolled_back", lambda request, answer: f"{request.topic}: batch {request.sequence}"),
    "Log.Reset": ("log_group_reset", lambda request, answer: f"{request.topic}: {request.group}"),
    "Log.RemoveGroup": (
        "log_group_removed",
        lambda request, answer: f"{request.topic}: {request.group}" if answer.removed else None,
    ),
    "Rights.Remove": ("rule_removed", lambda request, answer: _rule(answer)),
}


def note(audit: SecurityAudit, context: CallContext, method: str, request: Any, answer: Any) -> None:
    """Add a call that was done to the log, if the log has such calls."""
    entry = AUDITED.get(method)
    if entry is not None:
        event, describe = entry
        target = describe(request, answer)
        if target is not None:
            audit.record(context, event, target=target)
