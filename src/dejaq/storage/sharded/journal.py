"""The journals of all shards as one: records are numbered when they are first read.

A shard numbers its own records without a gap. A range of them gets the next numbers of the merged journal. These ranges
are rows on the first shard, so that the numbers are the same after every restart.
"""

from __future__ import annotations

from dataclasses import dataclass

from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.v1 import journal_pb2
from dejaq.storage.postgres.sharding.shard import PostgresShard, PostgresStretch
from dejaq.storage.sharded.shards import Shards


@dataclass(slots=True)
class MergedJournal:
    """The records that one broker has written on every shard."""

    shards: Shards
    # Whether there was ever more than one shard, as far as is known.
    merged: bool = False

    async def open(self) -> None:
        """Find out whether records of several shards must be merged."""
        self.merged = bool(await self.shards.at(0).merge({}))

    @property
    def _single(self) -> bool:
        return len(self.shards) == 1 and not self.merged

    async def read(self, after: int, bytes_max: int) -> list[bytes]:
        """The records after a number."""
        if self._single:
            return await self.shards.at(0).journal(after, bytes_max)
        found: list[bytes] = []
        for stretch in await self._stretches():
            while bytes_max > 0 and stretch.last > after:
                records, after = await self._read(stretch, max(after, stretch.first - 1), bytes_max)
                found += records
                bytes_max -= sum(map(len, records))
        return found

    async def _read(self, stretch: PostgresStretch, after: int, bytes_max: int) -> tuple[list[bytes], int]:
        """Records of a range after a number, and the number up to which all were read."""
        shift = stretch.first - stretch.start
        records = await self._shard(stretch.shard).journal(after - shift, bytes_max)
        found: list[bytes] = []
        for record in records:
            number = journal_pb2.JournalRecord.FromString(record).sequence + shift
            if number > stretch.last:
                break
            # In the serialized form a later value of a field replaces an earlier value.
            found.append(record + journal_pb2.JournalRecord(sequence=number).SerializeToString())
            after = number
        # None at all: the remaining records of the range were trimmed.
        return found, after if found else stretch.last

    async def trim(self, up_to: int) -> None:
        """Remove the records up to a number."""
        if self._single:
            await self.shards.at(0).trim_journal(up_to)
            return
        stretches = await self._stretches()
        last = stretches[-1].last if stretches else 0
        if up_to > last:
            raise error_of(Code.INVALID_ARGUMENT, f"the journal ends with record {last}, before {up_to}")
        newest = {stretch.shard: stretch for stretch in stretches}
        gone: list[int] = []
        for stretch in stretches:
            if stretch.first <= up_to:
                shift = stretch.first - stretch.start
                await self._shard(stretch.shard).trim_journal(min(up_to, stretch.last) - shift)
            if stretch.last <= up_to and stretch is not newest[stretch.shard] and stretch is not stretches[-1]:
                gone.append(stretch.first)
        if gone:
            await self.shards.at(0).forget_stretches(gone)

    async def _stretches(self) -> list[PostgresStretch]:
        """Every range, with the records that the shards have written since the last reading."""
        last: dict[int, int] = {}
        for shard in self.shards:
            try:
                last[shard.ordinal] = await shard.last_record()
            except DejaqError:
                # This shard is read later.
                continue
        return await self.shards.at(0).merge(last)

    def _shard(self, ordinal: int) -> PostgresShard:
        return next(shard for shard in self.shards if shard.ordinal == ordinal)
