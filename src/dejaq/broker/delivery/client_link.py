"""What a consumer needs of the session of its client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dejaq.errors import DejaqError
from dejaq.protocol.spliced import BrokerSent


class ClientLink(Protocol):
    """The consumer's session, as far as the consumer needs it."""

    async def send(self, frame: BrokerSent) -> None:
        """Send a frame; waits while the client is not reading."""

    def end(self, error: DejaqError) -> None:
        """End the session and send the reason to the client."""

    async def request_recall(self, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Ask the client to release rows that are not yet due; returns the rows it released."""
