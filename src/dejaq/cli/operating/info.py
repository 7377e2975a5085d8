"""`dejaq info`: the cluster, its brokers, topics and clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dejaq.cli.messages.topic import COLUMNS as TOPIC_COLUMNS
from dejaq.cli.messages.topic import topic_values
from dejaq.cli.terminal.invocation import Command, Invocation, pass_invocation
from dejaq.cli.terminal.output import Output, iso

if TYPE_CHECKING:
    from dejaq.sdk.admin.cluster import BrokerInfo, ClientInfo, ClusterInfo
    from dejaq.sdk.client import Client

BROKER_COLUMNS = ("id", "address", "version", "storage", "started", "sessions", "offset_ms", "health")
CLIENT_COLUMNS = (
    "name",
    "state",
    "topic",
    "who",
    "broker",
    "sdk",
    "latency_ms",
    "clock_offset_ms",
    "inflight",
    "buckets",
)


def cluster_values(info: ClusterInfo) -> dict[str, Any]:
    """The complete answer as plain values."""
    return {
        "cluster": info.cluster,
        "brokers": [broker_values(broker) for broker in info.brokers],
        "topics": [topic_values(topic) for topic in info.topics],
        "clients": [client_values(client) for client in info.clients],
    }


def broker_values(broker: BrokerInfo) -> dict[str, Any]:
    """A broker as plain values."""
    troubles = list(broker.degradations)
    return {
        "id": broker.id,
        "address": broker.address,
        "version": broker.version,
        "storage": broker.storage,
        "started": iso(broker.started_ms),
        "clock": iso(broker.clock_ms),
        "up": lasted(broker.clock_ms - broker.started_ms),
        "health": "; ".join(troubles) or ("draining" if broker.draining else "healthy"),
        "degradations": troubles,
        "draining": broker.draining,
        "drift_ms": broker.drift_ms,
        "synchronization": broker.synchronization,
        "sessions": broker.sessions,
        "seen": iso(broker.seen_ms) if broker.seen_ms else None,
        "latency_ms": broker.latency_ms,
        "offset_ms": broker.offset_ms,
        "notes": list(broker.notes),
    }


def lasted(ms: int) -> str:
    """A length of time in its two largest units."""
    seconds = max(0, ms) // 1000
    for unit, size, smaller, smaller_size in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // smaller_size}{smaller}"
    return f"{seconds}s"


def client_values(client: ClientInfo) -> dict[str, Any]:
    """A client as plain values."""
    return {
        "id": client.id,
        "name": client.name,
        "sdk": client.sdk,
        "state": client.state,
        "topic": client.topic,
        "who": client.who,
        "broker": client.broker,
        "latency_ms": client.latency_ms,
        "clock_offset_ms": client.clock_offset_ms,
        "inflight": client.inflight,
        "buckets": len(client.buckets),
    }


@click.command(cls=Command)
@pass_invocation
def info(invocation: Invocation) -> None:
    """Show the cluster: brokers with their health, topics with exact counts, and clients."""

    async def work(client: Client) -> ClusterInfo:
        return await client.info()

    values = cluster_values(invocation.run(work))
    output = invocation.output
    if output.json:
        output.object(values)
        return
    click.echo(f"cluster {values['cluster']}")
    print_parts(output, values)


def print_parts(output: Output, values: dict[str, Any]) -> None:
    """The three tables."""
    output.table(values["brokers"], BROKER_COLUMNS, numbers=("sessions", "offset_ms"))
    for broker in values["brokers"]:
        for note in broker["notes"]:
            output.note(f"{broker['id']}: {note}")
    output.table(values["topics"], TOPIC_COLUMNS, numbers=TOPIC_COLUMNS[2:], empty="no topics")
    output.table(
        values["clients"],
        CLIENT_COLUMNS,
        numbers=("latency_ms", "clock_offset_ms", "inflight", "buckets"),
        empty="no clients",
    )
