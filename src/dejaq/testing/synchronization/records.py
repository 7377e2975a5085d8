"""Checks of records: created once, compared, removed, and separate from those of other clusters."""

from __future__ import annotations

import asyncio

from dejaq.testing.synchronization.stage import ClusterScene


async def what_one_puts_another_gets(scene: ClusterScene) -> None:
    """Every member reads a record as it was written."""
    one, other = await scene.place(), await scene.place()
    written = await one.put("topics/mail", b"\x00live")
    assert written is not None
    assert await other.get("topics/mail") == written
    assert written.value == b"\x00live"
    assert await other.get("topics/none") is None


async def a_prefix_lists_its_records_by_key(scene: ClusterScene) -> None:
    """`under` returns the records of a prefix and no others, in the order of their keys."""
    place = await scene.place()
    for key in ("a/2", "a/1", "ab", "b/1"):
        await place.put(key, key.encode())
    assert [record.key for record in await place.under("a/")] == ["a/1", "a/2"]
    assert [record.key for record in await place.under("a")] == ["a/1", "a/2", "ab"]
    assert await place.under("c/") == []


async def a_record_is_created_once(scene: ClusterScene) -> None:
    """Of many members that create one record at one time, one succeeds."""
    places = [await scene.place() for _ in range(3)]
    done = await asyncio.gather(
        *(place.put("topics/mail", str(n).encode(), expected=0) for n, place in enumerate(places * 3))
    )
    winners = [record for record in done if record is not None]
    assert len(winners) == 1
    assert await places[0].get("topics/mail") == winners[0]


async def a_change_needs_the_revision_it_expects(scene: ClusterScene) -> None:
    """A record that was changed meanwhile is not written, and does not change."""
    one, other = await scene.place(), await scene.place()
    first = await one.put("topics/mail", b"creating", expected=0)
    assert first is not None
    second = await other.put("topics/mail", b"live", expected=first.revision)
    assert second is not None
    assert await one.put("topics/mail", b"deleting", expected=first.revision) is None
    assert await one.get("topics/mail") == second
    assert await one.put("topics/none", b"", expected=second.revision) is None


async def a_token_stays_with_its_record_and_grows_with_the_next(scene: ClusterScene) -> None:
    """The token stays the same through changes, and is larger when the key is created again."""
    place = await scene.place()
    first = await place.put("owner", b"one")
    changed = await place.put("owner", b"still one")
    assert first is not None
    assert changed is not None
    assert changed.token == first.token
    assert changed.revision > first.revision
    assert await place.remove("owner")
    again = await place.put("owner", b"two")
    assert again is not None
    assert again.token > changed.revision


async def a_removal_needs_the_revision_it_expects(scene: ClusterScene) -> None:
    """A record that was changed meanwhile is not removed; a record that does not exist cannot be removed."""
    place = await scene.place()
    first = await place.put("owner", b"one")
    second = await place.put("owner", b"two")
    assert first is not None
    assert second is not None
    assert not await place.remove("owner", expected=first.revision)
    assert await place.remove("owner", expected=second.revision)
    assert not await place.remove("owner")
    assert await place.get("owner") is None


async def clusters_do_not_see_each_other(scene: ClusterScene) -> None:
    """A cluster does not see the records of another cluster, even when one name begins with the other name."""
    one, other = await scene.place(), await scene.place(scene.cluster + "-b")
    await one.put("topics/mail", b"one")
    assert await other.get("topics/mail") is None
    await other.put("topics/mail", b"other")
    assert [record.value for record in await one.under("topics/")] == [b"one"]
    assert [record.value for record in await other.under("")] == [b"other"]
