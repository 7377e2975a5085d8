"""Forwarding: moves messages between topics, and from and to other queues.

    await forward(client, "orders", "redis://127.0.0.1:6379/orders")

`Source` and `Sink` are what another queue must implement; `Forwarder` moves what one reads to the other.
"""

from __future__ import annotations

from dejaq.forward.addresses import forward, forwarder
from dejaq.forward.base import Parcel, Sink, Source
from dejaq.forward.forwarder import Forwarder

__all__ = ["Forwarder", "Parcel", "Sink", "Source", "forward", "forwarder"]
