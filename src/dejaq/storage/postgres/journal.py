"""The records of one origin: numbered when they are first read, without a gap, in causal order."""

from __future__ import annotations

from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import journal_pb2
from dejaq.storage.postgres.connection.database import PostgresDatabase, PostgresLink

_STAMP_MAX = 10_000
_READ_MAX = 200
_READ_BYTES_TYPICAL = 4_096


class PostgresJournal:
    """The records that one broker has written and not yet exported."""

    def __init__(self, database: PostgresDatabase, name: str) -> None:
        self._database = database
        self._name = name
        self.origin: int | None = None
        self._opened = 0
        self._written = 0
        self._bytes = 0

    async def open(self) -> None:
        """Find this broker's origin, or create it."""

        async def find(link: PostgresLink) -> tuple[int, int]:
            await link.execute("make_origin", self._name)
            (found,) = await link.fetch("find_origin", self._name)
            waiting = await link.value("unstamped_count", found["number"])
            return found["number"], found["sequence"] + waiting

        self.origin, self._opened = await self._database.change(find)

    def written(self, size: int) -> None:
        """Count a record for the figures."""
        self._written += 1
        self._bytes += size

    def stats(self) -> dict[str, float]:
        """The last sequence, the sequence at the start, and the bytes written since."""
        return {
            "journal_sequence": self._opened + self._written,
            "journal_opened": self._opened,
            "journal_bytes": self._bytes,
        }

    async def _stamp(self) -> None:
        async def stamp(link: PostgresLink) -> None:
            if await link.value("unstamped", self.origin) is not None:
                await link.execute("stamp", self.origin, _STAMP_MAX)

        await self._database.change(stamp)

    async def read(self, after: int, bytes_max: int) -> list[bytes]:
        """The records after a sequence."""
        if self.origin is None:
            return []
        await self._stamp()
        count = max(1, min(_READ_MAX, bytes_max // _READ_BYTES_TYPICAL + 1))
        records = await self._database.read(lambda link: link.fetch("journal", self.origin, after, count))
        found: list[bytes] = []
        for record in records:
            if bytes_max <= 0:
                break
            # In the serialized form a later value of a field replaces an earlier value.
            numbers = journal_pb2.JournalRecord(sequence=record["sequence"], ticket=record["ticket"])
            found.append(record["record"] + numbers.SerializeToString())
            bytes_max -= len(found[-1])
        return found

    async def last(self) -> int:
        """The number of the last record."""
        await self._stamp()
        sequence: int | None = await self._database.read(lambda link: link.value("origin", self.origin))
        return sequence or 0

    async def trim(self, up_to: int) -> None:
        """Remove the records up to a sequence."""
        await self._stamp()

        async def trim(link: PostgresLink) -> int:
            last: int = await link.value("origin", self.origin)
            if up_to <= last:
                await link.execute("trim", self.origin, up_to)
            return last

        last = await self._database.change(trim) if self.origin is not None else 0
        if up_to > last:
            raise error_of(Code.INVALID_ARGUMENT, f"the journal ends with record {last}, before {up_to}")
