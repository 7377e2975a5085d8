"""The terms on which a consumer takes messages."""

from __future__ import annotations

from dataclasses import dataclass

from dejaq import limits
from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier

CREDIT_BYTES = limits.CREDIT_BYTES_DEFAULT


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of one consumer: topic, name, length of a lease, prefetch time, and limits."""

    topic: str
    name: str
    lease_ms: int
    prefetch_ms: int
    credit_rows: int
    credit_bytes: int = CREDIT_BYTES
    max_messages: int | None = None
    auto_extend: bool = True
    weight: int = limits.WEIGHT_DEFAULT
    rack: str = ""
    rate: int = 0
    # Whether large bodies are fetched before they are handed over.
    fetch_large: bool = True
    # Whether the consumer waits through an outage beyond the client's deadline, or a wait for a message raises
    # NO_BROKER.
    wait_through_outages: bool = True

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= limits.CONSUMER_NAME_CHARS_MAX:
            raise error_of(
                Code.INVALID_ARGUMENT,
                f"a consumer's name has 1 to {limits.CONSUMER_NAME_CHARS_MAX} characters",
            )
        if not 0 <= self.prefetch_ms <= limits.PREFETCH_MS_MAX:
            raise error_of(
                Code.INVALID_ARGUMENT,
                f"prefetch is 0 to {limits.PREFETCH_MS_MAX / 1000:g} s, not {self.prefetch_ms / 1000:g}",
            )
        if self.max_messages is not None and self.max_messages < 1:
            raise error_of(Code.INVALID_ARGUMENT, "max_messages is 1 or more")
        if not 1 <= self.credit_rows <= limits.CREDIT_ROWS_MAX:
            raise error_of(Code.INVALID_ARGUMENT, f"max_in_flight is 1 to {limits.CREDIT_ROWS_MAX}")

        if not 1 <= self.weight <= limits.WEIGHT_MAX:
            raise error_of(Code.INVALID_ARGUMENT, f"a weight is 1 to {limits.WEIGHT_MAX}, not {self.weight}")
        if not 0 <= self.rate <= limits.CONSUMER_RATE_MAX:
            raise error_of(
                Code.INVALID_ARGUMENT, f"a rate is 1 to {limits.CONSUMER_RATE_MAX} messages per second, 0 for no limit"
            )
        if len(self.rack) > limits.RACK_CHARS_MAX:
            raise error_of(Code.INVALID_ARGUMENT, f"a rack has at most {limits.RACK_CHARS_MAX} characters")

    def subscribe(self) -> carrier.Subscribe:
        """The frame that starts the delivery."""
        return carrier.Subscribe(
            credit_rows=self.credit_rows,
            credit_bytes=self.credit_bytes,
            lease_ms=self.lease_ms,
            prefetch_ms=self.prefetch_ms,
            weight=self.weight,
            rack=self.rack,
            rate=self.rate,
        )
