"""Callers: the own identity, sessions, API keys, rules and their explanation."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dejaq.sdk.admin.access import AccessCalls, Caller, KeyInfo, SessionInfo
from dejaq.sdk.admin.rights import RightsDecision, RightsQuota, RightsRule
from dejaq.web.api.operation import ApiAnswer, ApiCall

_Text = Annotated[str, Meta(max_length=200)]
_Limit = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LIFETIME_DAYS_MAX = 36_500


class SessionList(msgspec.Struct):
    """The open sessions that the caller may end."""

    sessions: list[SessionInfo]


class KeyList(msgspec.Struct):
    """The keys that the caller may revoke, without their secrets."""

    keys: list[KeyInfo]


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """A key to make; `days` is its lifetime, 0 for one without an end."""

    user: _Text = ""
    groups: Annotated[list[_Text], Meta(max_length=50)] = []
    label: _Text = ""
    days: Annotated[float, Meta(ge=0, le=LIFETIME_DAYS_MAX)] = 90


class KeyMade(msgspec.Struct):
    """A new key. Its secret is shown now and never again."""

    key: KeyInfo
    secret: str


class RuleList(msgspec.Struct):
    """The rules that the caller may see, oldest first, and its quotas."""

    rules: list[RightsRule]
    quotas: list[RightsQuota]


class NewRule(msgspec.Struct, forbid_unknown_fields=True):
    """A rule to add: it allows or denies operations on a topic, or on all that begin with `PREFIX*`."""

    principal: _Text
    operations: Annotated[list[_Text], Meta(min_length=1, max_length=20)]
    topic: _Text
    group: _Text = ""
    deny: bool = False


class NewQuota(msgspec.Struct, forbid_unknown_fields=True):
    """The limits of a principal, 0 for none: topics that it may create, messages per second at each broker, messages
    and bytes in its topics.
    """

    principal: _Text
    topics: _Limit = 0
    rate: _Limit = 0
    pending: _Limit = 0
    bytes: _Limit = 0


class CheckQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What to explain; `principal` may be given more than once, and is the caller by default."""

    operation: _Text
    topic: _Text = "*"
    group: _Text = ""
    principal: list[_Text] = []


async def read_me(call: ApiCall) -> ApiAnswer:
    """The caller as the broker sees it."""
    caller: Caller = await AccessCalls(call.client).who_am_i()
    return ApiAnswer(caller)


async def list_sessions(call: ApiCall) -> ApiAnswer:
    """The open sessions of producers and consumers that the caller may end."""
    return ApiAnswer(SessionList(await AccessCalls(call.client).sessions()))


async def end_session(call: ApiCall) -> ApiAnswer:
    """End a session at every broker; its messages are delivered to others."""
    await AccessCalls(call.client).end_session(call.path["session"])
    return ApiAnswer(status=204)


async def list_keys(call: ApiCall) -> ApiAnswer:
    """The API keys that the caller may revoke."""
    return ApiAnswer(KeyList(await AccessCalls(call.client).keys()))


async def create_key(call: ApiCall) -> ApiAnswer:
    """Make an API key. The answer has its secret, which cannot be read again; the call is not to be repeated."""
    new = call.json(NewKey)
    key, secret = await AccessCalls(call.client).create_key(
        user=new.user, groups=new.groups, label=new.label, lifetime_ms=round(new.days * 86_400_000)
    )
    return ApiAnswer(KeyMade(key, secret), status=201)


async def revoke_key(call: ApiCall) -> ApiAnswer:
    """Have every broker refuse a key; its open sessions end."""
    await AccessCalls(call.client).revoke_key(call.path["key"])
    return ApiAnswer(status=204)


async def list_rules(call: ApiCall) -> ApiAnswer:
    """The rules and quotas that the caller may see."""
    rights = call.client.rights()
    return ApiAnswer(RuleList(list(await rights.list()), list(await rights.quotas())))


async def add_rule(call: ApiCall) -> ApiAnswer:
    """Allow or deny something; a repeat changes nothing."""
    new = call.json(NewRule)
    put = call.client.rights().deny if new.deny else call.client.rights().allow
    return ApiAnswer(await put(new.principal, new.operations, new.topic, group=new.group), status=201)


async def remove_rule(call: ApiCall) -> ApiAnswer:
    """Remove a rule; sessions that need it end."""
    await call.client.rights().remove(call.path["rule"])
    return ApiAnswer(status=204)


async def check_right(call: ApiCall) -> ApiAnswer:
    """Whether the caller, or another one, may do something, and the rule that decides."""
    query: CheckQuery = call.query
    decision: RightsDecision = await call.client.rights().check(
        query.operation, query.topic, group=query.group, principals=query.principal
    )
    return ApiAnswer(decision)


async def set_quota(call: ApiCall) -> ApiAnswer:
    """Limit each caller that a principal means, in place of its earlier quota; without a limit the quota is removed."""
    new = call.json(NewQuota)
    return ApiAnswer(
        await call.client.rights().set_quota(
            new.principal, topics=new.topics, rate=new.rate, pending=new.pending, bytes=new.bytes
        )
    )
