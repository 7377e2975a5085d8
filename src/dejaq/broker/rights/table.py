"""The one table of what every call and every frame of a session needs.

A call that is not here is refused while users are checked, and a test that reads the protocol's descriptors fails. The
calls of `Peer` are not here: they have an address of their own, which only brokers may use.
"""

from __future__ import annotations

from enum import Enum

from dejaq.broker.rights import needs
from dejaq.broker.rights.needs import Needs
from dejaq.security.rights.operations import Operation as Op


class Open(Enum):
    """Why a call needs no right to be begun."""

    # It concerns nothing but the connection.
    CONNECTION = "connection"
    # Its answer has only what the caller may see.
    FILTERED = "filtered"
    # What it does is checked part by part: each frame, each transaction.
    BY_PART = "by part"
    # It names a record of rights, and whether the caller may do it depends on that record.
    BY_RECORD = "by record"


CALLS: dict[str, Needs | Open] = {
    "Overseer.Info": Open.FILTERED,
    "Overseer.Ping": Open.CONNECTION,
    "Access.WhoAmI": Open.CONNECTION,
    "Access.CreateKey": Open.BY_RECORD,
    "Access.ListKeys": Open.FILTERED,
    "Access.RevokeKey": Open.BY_RECORD,
    "Access.ListSessions": Open.FILTERED,
    "Access.EndSession": Open.BY_RECORD,
    "Overseer.CreateTopic": needs.creating_topic,
    "Overseer.EditTopic": needs.editing_topic,
    "Overseer.DescribeTopic": Open.FILTERED,
    "Overseer.ListTopics": Open.FILTERED,
    "Overseer.Copies": needs.on_name(Op.INSPECT),
    "Overseer.DeleteTopic": needs.on_name(Op.ADMIN),
    "Overseer.RekeyTopic": needs.on_name(Op.ADMIN),
    "Overseer.Checkpoint": needs.operating,
    "Carrier.Session": Open.BY_PART,
    "Carrier.Transact": needs.transacting,
    "Carrier.TransactMany": Open.BY_PART,
    "Carrier.Await": needs.on_topic(Op.INSPECT),
    "Carrier.Get": needs.on_topic(Op.INSPECT),
    "Carrier.Count": needs.inspecting_filtered,
    "Carrier.Histogram": needs.inspecting_filtered,
    "Carrier.Browse": needs.inspecting_filtered,
    "Carrier.History": needs.on_topic(Op.INSPECT),
    "Carrier.OpenSnapshot": needs.on_topic(Op.INSPECT),
    "Carrier.CloseSnapshot": needs.closing_snapshot,
    "Carrier.Scan": needs.scanning,
    "Carrier.Upload": needs.sending_body,
    "Carrier.FindBody": needs.sending_body,
    # A consumer fetches the large bodies of what it leased; the reference, which it got with the lease, has the digest.
    "Carrier.Download": needs.on_topic(Op.READ, Op.CONSUME),
    "Carrier.Redrive": needs.redriving,
    "Carrier.Purge": needs.on_topic(Op.ADMIN),
    "Cron.Put": needs.scheduling,
    "Cron.List": needs.on_topic(Op.INSPECT),
    "Cron.Change": needs.on_topic(Op.SCHEDULE),
    "Cron.Next": needs.on_topic(Op.INSPECT),
    "Log.Offsets": needs.on_topic(Op.INSPECT),
    "Log.OffsetsForTime": needs.on_topic(Op.INSPECT),
    "Log.Fetch": needs.on_topic(Op.READ, Op.CONSUME),
    "Log.Rollback": needs.on_topic(Op.CHANGE),
    "Log.Groups": needs.on_topic(Op.INSPECT),
    "Log.Reset": needs.on_topic(Op.CONSUME),
    "Log.RemoveGroup": needs.on_topic(Op.CONSUME),
    "Log.Prepare": needs.preparing,
    "Log.Resolve": needs.on_topic(Op.CHANGE),
    "Log.InDoubt": needs.on_topic(Op.INSPECT),
    "Rights.List": Open.FILTERED,
    "Rights.Put": needs.putting_rule,
    "Rights.Remove": Open.BY_RECORD,
    "Rights.Check": Open.BY_RECORD,
    "Rights.SetQuota": needs.operating,
    "Rights.ListQuotas": Open.FILTERED,
}

# The commands of a session: what each needs on the session's topic, as the session's producer group. A handshake needs
# one of its operations; the frames after it are checked each by its own.
FRAMES: dict[str, tuple[Op, ...] | Open] = {
    "hello": Open.CONNECTION,
    "ping": Open.CONNECTION,
    "renew": Open.CONNECTION,
    "producer": (Op.PRODUCE, Op.CHANGE),
    "create": (Op.PRODUCE,),
    "edit": (Op.CHANGE,),
    "cancel": (Op.CHANGE,),
    "consumer": (Op.CONSUME,),
    "subscribe": (Op.CONSUME,),
    "unsubscribe": (Op.CONSUME,),
    "settle": (Op.CONSUME,),
    "deletes": (Op.CONSUME,),
    "extends": (Op.CONSUME,),
    "recalled": (Op.CONSUME,),
    "busy": (Op.CONSUME,),
    "progress": (Op.CONSUME,),
    # An append needs PRODUCE, a member of a group CONSUME, and a reader without a group one of the others: see
    # `SessionRights`.
    "log": (Op.READ, Op.CONSUME),
}
