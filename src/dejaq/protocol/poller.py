"""gRPC's poller thread, kept for the life of the process."""

from __future__ import annotations

from functools import cache

import grpc.aio


@cache
def hold_poller() -> None:
    """Let the poller live on when the last channel or server is gone.

    gRPC would end it where the last of them is collected as garbage, and wait for its thread there: with a call that is
    not quite over, without end, in whatever code happened to allocate memory.
    """
    grpc.aio.init_grpc_aio()
