"""Large bodies of the shared store, uploaded and read in parts; the messages show which bodies are in use.

A store that is one of several numbers its bodies from its own `first` on. So a body keeps its number when it is copied
to another store with the messages that refer to it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable

from dejaq import limits
from dejaq.crashpoints import crash_at
from dejaq.domain.bodies.large import Declared, Reference, Seal, reference_of
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.postgres.connection.database import PostgresDatabase, PostgresLink
from dejaq.storage.postgres.operations.change import TopicTransaction, places_of
from dejaq.storage.postgres.queries import SQL

log = logging.getLogger(__name__)


class PostgresBodies:
    """Implements `storage.base.Bodies`. Every step commits by itself and may be repeated."""

    def __init__(self, database: PostgresDatabase, removed: Callable[[], None] = lambda: None) -> None:
        """`removed` is called when bodies were reclaimed."""
        self._database = database
        self._removed = removed
        self.first = 0

    async def upload(
        self, topic: Topic, bucket: int, declared: Declared, parts: AsyncIterator[bytes], now: int
    ) -> Reference:
        """Write each part before the next part is requested."""
        number = self.first + await self._database.read(lambda link: link.value("next_large"))
        reference = Reference(declared.size, declared.stored, declared.digest, number)
        name, (place,) = _name(number), places_of(topic, [bucket])
        fields = (declared.size, declared.stored, declared.digest, now)
        await self._database.step(lambda link: link.execute("begin_large", name, place, *fields))
        try:
            await self._take(reference, declared, parts)
            known = await self._same(topic, name, now)
            if known is None:
                # The body was removed: the upload took so long that it counted as abandoned.
                if await self._database.step(lambda link: link.value("finish_large", name, now)) is None:
                    raise error_of(Code.BODY_MISSING, "the upload took too long; send it again")
                return reference
        except BaseException:
            await self._drop(name)
            raise
        await self._drop(name)
        return Reference(declared.size, declared.stored, declared.digest, known)

    async def _take(self, reference: Reference, declared: Declared, parts: AsyncIterator[bytes]) -> None:
        seal, name = Seal(), _name(reference.number)
        async for part in parts:
            seal.add(part)
            if seal.over(reference):
                break
            row = (name, seal.count - 1, part)
            await self._database.step(lambda link, row=row: link.execute("put_part", *row))  # type: ignore[misc]
        if not seal.fits(declared):
            raise error_of(Code.INVALID_ARGUMENT, "the parts of the upload are not what its head says")

    async def _same(self, topic: Topic, name: bytes, now: int) -> int | None:
        if not topic.settings.share_bodies:
            return None
        same = await self._database.read(lambda link: link.value("same_large", name))
        touched = same and await self._database.step(lambda link: link.fetch("touch_large", [same], now))
        return int.from_bytes(same, "big") if touched else None

    async def _drop(self, name: bytes) -> None:
        try:
            await self._database.step(lambda link: link.execute("drop_large", [name]))
        except DejaqError as error:
            log.debug("an upload is left to be reclaimed: %s", error)

    async def find(self, topic: Topic, bucket: int, declared: Declared, now: int) -> Reference | None:
        """A body that matches all 256 bits of the digest."""
        wanted = (declared.digest, declared.size, declared.stored, now)
        name = await self._database.step(lambda link: link.value("find_large", *wanted))
        if name is None:
            return None
        return Reference(declared.size, declared.stored, declared.digest, int.from_bytes(name, "big"))

    async def part(self, topic: Topic, bucket: int, reference: Reference, part: int) -> bytes:
        """One part."""
        return await self.part_of(reference, part)

    async def part_of(self, reference: Reference, part: int) -> bytes:
        """One part of a body of any topic."""
        name = _name(reference.number)
        data: bytes | None = await self._database.read(lambda link: link.value("part", name, part))
        if data is None:
            raise error_of(Code.BODY_MISSING, "the large body does not exist; its message is gone or has another body")
        return data

    async def absent(self, references: Iterable[Reference], now: int) -> list[Reference]:
        """The bodies that this store does not have; the others can be referred to for at least UPLOAD_KEEP_MS."""
        wanted = list(references)
        there = await self._database.step(lambda link: touched(link, wanted, now)) if wanted else set()
        return [one for one in wanted if one not in there]

    async def adopt(self, reference: Reference, source: PostgresBodies, now: int) -> bool:
        """Copy a body of another store to this one, under its number; returns whether the other store has it.

        Several callers may do so at the same time. An interrupted copy is continued by the next caller, or reclaimed.
        Raises UNAVAILABLE if the copy is reclaimed meanwhile.
        """
        name = _name(reference.number)
        fields = (reference.size, reference.stored, reference.digest)
        place = await source._database.step(lambda link: link.value("place_large", name, *fields, now))
        if place is None:
            return False
        await self._database.step(lambda link: link.execute("begin_adopted", name, place, *fields, now))
        for part in range(reference.parts):
            row = (name, part, await source.part_of(reference, part))
            await self._database.step(lambda link, row=row: link.execute("put_part", *row))  # type: ignore[misc]
            crash_at("bodies.part_adopted")
        if await self._database.step(lambda link: link.value("finish_adopted", name, now)) is None:
            raise error_of(
                Code.UNAVAILABLE, "a large body was removed as abandoned while it was transferred; try again"
            )
        return True

    async def reclaim(self, now: int) -> int:
        """Remove the bodies without references that were not used for a long time."""
        removed = 0
        while True:
            answer: str = await self._database.read(
                lambda link: link.connection.execute(SQL["reclaim_large"], now - limits.UPLOAD_KEEP_MS, now)
            )
            count = int(answer.rpartition(" ")[2])
            removed += count
            if not count:
                break
        if removed:
            self._removed()
        return removed


async def missing(change: TopicTransaction, bodies: Iterable[bytes | None]) -> set[bytes]:
    """The bodies whose references have no large body; all others stay at least until the commit."""
    references = {body: found for body in bodies if body is not None and (found := reference_of(body)) is not None}
    if not references:
        return set()
    there = await touched(change.link, references.values(), change.now)
    return {body for body, one in references.items() if one not in there}


async def touched(link: PostgresLink, references: Iterable[Reference], now: int) -> set[Reference]:
    """The bodies that exist; they stay for at least UPLOAD_KEEP_MS."""
    names = sorted({_name(reference.number) for reference in references})
    return {
        Reference(record["size"], record["stored"], record["digest"], int.from_bytes(record["name"], "big"))
        for record in await link.fetch("touch_large", names, now)
    }


def _name(number: int) -> bytes:
    return number.to_bytes(8, "big")
