"""Frees space in an etcd that has none left: its history is dropped, its file made smaller, its alarm ended."""

from __future__ import annotations

from contextlib import suppress

from dejaq.errors import ClusterRefused
from dejaq.protocol.etcd import rpc_pb2 as rpc
from dejaq.synchronization.etcd.wire import Wire

SECONDS = 30.0


async def free_space(wire: Wire) -> None:
    """Compact the whole etcd, defragment the server that `wire` leads to, and disarm that server's alarm."""
    status = (await wire.call("Maintenance.Status", rpc.StatusRequest(), rpc.StatusResponse)).response
    request = rpc.CompactionRequest(revision=status.header.revision, physical=True)
    # Refused where another has compacted up to the same revision.
    with suppress(ClusterRefused):
        await wire.call("KV.Compact", request, rpc.CompactionResponse, seconds=SECONDS)
    await wire.call("Maintenance.Defragment", rpc.DefragmentRequest(), rpc.DefragmentResponse, seconds=SECONDS)
    alarms = (await wire.call("Maintenance.Alarm", rpc.AlarmRequest(), rpc.AlarmResponse)).response.alarms
    for one in alarms:
        if one.memberID == status.header.member_id and one.alarm == rpc.NOSPACE:
            disarm = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=one.memberID, alarm=one.alarm)
            await wire.call("Maintenance.Alarm", disarm, rpc.AlarmResponse)
