"""Valid frames and records as starting points of fuzzing, and small random damage to them."""

from __future__ import annotations

import random

from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import records_pb2 as records

NOW = 1_800_000_000_000
SESSION = ProducerSession(NOW, 7).pack()


def producer_frames() -> list[bytes]:
    """Every command of a producer."""
    headers = encode_headers({"kind": "fuzz"})
    return _numbered(
        carrier.ClientFrame(
            create=carrier.CreateBatch(
                session=SESSION, sequence=1, bucket=2, ts=[9, NOW, NOW + 5], bodies=[b"a", b"", b"cc" * 50]
            )
        ),
        carrier.ClientFrame(
            create=carrier.CreateBatch(
                session=SESSION,
                sequence=9,
                ids=["one", "two"],
                ts=[5, 7],
                bodies=[b"a", b"b"],
                priorities=[1, -1],
                headers=[headers, b""],
                relative=True,
            )
        ),
        carrier.ClientFrame(
            create=carrier.CreateBatch(
                session=SESSION,
                sequence=11,
                ids=["four", "five", "six"],
                ts=[5, 7, 6],
                bodies=[b"a", b"b", b"c"],
                relative_rows=[0, 1, 2, 3],
            )
        ),
        carrier.ClientFrame(
            edit=carrier.EditBatch(
                ids=["one", "two"], ts=[1, 2], bodies=[b"x", b"y"], priorities=[3, 4], headers=[headers, headers]
            )
        ),
        carrier.ClientFrame(edit=carrier.EditBatch(ids=["one"], ts=[10], versions=[4], relative=True)),
        carrier.ClientFrame(cancel=carrier.CancelBatch(ids=["one", "three", "a" * 64])),
        carrier.ClientFrame(ping=carrier.Ping(client_us=5, latency_ms=0.5, clock_offset_ms=-3.0)),
    )


def consumer_frames() -> list[bytes]:
    """Every command of a consumer."""
    return _numbered(
        carrier.ClientFrame(settle=carrier.Settle(kind=carrier.DELETE, lease=1, ranges=[0, 1, 3, 9])),
        carrier.ClientFrame(settle=carrier.Settle(kind=carrier.DELETE, lease=2)),
        carrier.ClientFrame(settle=carrier.Settle(kind=carrier.EXTEND, lease=1, ranges=[0, 2], lease_ms=500)),
        carrier.ClientFrame(
            settle=carrier.Settle(kind=carrier.RELEASE, lease=1, ranges=[0, 2], ts=[5, 6], relative=True)
        ),
        carrier.ClientFrame(settle=carrier.Settle(kind=carrier.RECALL, lease=1, ranges=[0, 1])),
        carrier.ClientFrame(
            subscribe=carrier.Subscribe(credit_rows=10, credit_bytes=1_000, lease_ms=500, prefetch_ms=50)
        ),
        carrier.ClientFrame(unsubscribe=carrier.Unsubscribe()),
        carrier.ClientFrame(recalled=carrier.RecallAnswer(lease=1, rows=[0, 1])),
    )


def opening_frames() -> list[bytes]:
    """The frames that begin a session."""
    return _numbered(
        carrier.ClientFrame(hello=carrier.Hello(protocol=1, sdk="fuzz", client="fuzz", clock="x")),
        carrier.ClientFrame(producer=carrier.ProducerHandshake(topic="mail", group="fuzz")),
        carrier.ClientFrame(consumer=carrier.ConsumerHandshake(topic="mail", name="fuzz")),
    )


def _numbered(*frames: carrier.ClientFrame) -> list[bytes]:
    for number, frame in enumerate(frames, start=1):
        frame.request = number
    return [frame.SerializeToString() for frame in frames]


def store_records() -> list[bytes]:
    """One record of each kind that the store parses."""
    run = records.Run(owner="fuzz", session=SESSION, first=3, ts=[NOW, NOW + 1], bodies=[b"a", b"b"], attempts=[1, 2])
    listed = records.Run(owner="fuzz", ids=["one", "two"], ts=[NOW, NOW], bodies=[b"", b"b"], apart=[7, 0])
    lease = records.Lease(consumer="fuzz", runs=[b"x" * 22], starts=[0], counts=[2], dues=[0], expires=NOW)
    terms = records.Terms(expires=[NOW, NOW + 1], masks=[b"\x01", b"\x02"])
    seen = records.SeenCounters(used_ms=NOW, ranges=[0, 10, 20, 30])
    return [one.SerializeToString() for one in (run, listed, lease, terms, seen)]


def damaged(data: bytes, seed: int) -> bytes:
    """A few random edits; the result often still parses and then means something else."""
    chance = random.Random(seed)
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randrange(len(out) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            out[at:at] = chance.randbytes(chance.randrange(1, 10))
        elif kind == 3:
            del out[at : at + chance.randrange(1, 6)]
        elif kind == 4:
            out[at:at] = out[chance.randrange(len(out) + 1) :][: chance.randrange(1, 40)]
        elif chance.random() < 0.2:
            del out[at:]
    return bytes(out)
