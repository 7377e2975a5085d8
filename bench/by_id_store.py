"""Changes by id on the embedded store, in process: what get, move, edit and cancel of random ids cost.

    python -m bench.by_id_store --rows 1000000 --changes 50000 --batch 1000
    python -m bench.by_id_store --rows 5000000 --changes 50000 --store pending --cold

Messages of 100 bytes with own ids at random times of 30 days are created and merged. Then each operation names ids
that are drawn at random, a batch per call, four calls in flight; single changes have 64 in flight. Prints one line of
JSON. With `--store`, the messages are created there once, and each run changes a copy. With `--cold`, no file of the
store is in the page cache before each operation. To compare releases, run it with the `src` of each in PYTHONPATH, in
the same minute.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.scattered_store import BODY, NOW, SPREADS_MS, batches, create_all
from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Cancel, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.store import RocksStorage

IN_FLIGHT = 4
OWNER = "o"
Call = Callable[[list[str]], Awaitable[None]]


def calls_of(storage: RocksStorage, topic: Topic, chance: random.Random) -> dict[str, Call]:
    """Each operation as a call with ids; it fails unless every message is found and changed."""

    def check(outcomes: Outcomes) -> None:
        assert not outcomes.codes, outcomes.codes

    async def get(ids: list[str]) -> None:
        assert all(await storage.get(topic, ids, NOW))

    async def move(ids: list[str]) -> None:
        times = [NOW + chance.randrange(1, SPREADS_MS["30d"]) for _ in ids]
        check(await apply_one(storage, Edit(topic, OWNER, Edits(ids, ts=times)), NOW, DIRECT_CALL))

    async def edit(ids: list[str]) -> None:
        body = BODY[:-1] + b"y"
        check(await apply_one(storage, Edit(topic, OWNER, Edits(ids, bodies=[body] * len(ids))), NOW, DIRECT_CALL))

    async def cancel(ids: list[str]) -> None:
        check(await apply_one(storage, Cancel(topic, OWNER, ids), NOW, DIRECT_CALL))

    return {"get": get, "move": move, "edit": edit, "cancel": cancel}


async def run_calls(call: Call, ids: list[str], batch: int) -> None:
    """Have every id changed, a batch per call."""
    cuts = iter([ids[first : first + batch] for first in range(0, len(ids), batch)])

    async def work() -> None:
        for cut in cuts:
            await call(cut)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT if batch > 1 else 64)))


async def create(args: argparse.Namespace, topic: Topic, path: Path) -> None:
    """Make a store with the messages, merged unless the arguments say otherwise, and a list of their ids."""
    made = batches(args.rows, "own", "30d", args.buckets)
    storage = RocksStorage(path / "store", journal=True)
    await storage.open(NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    await create_all(storage, topic, made)
    if not args.unmerged:
        await storage.merger.settle()
    await storage.close()
    (path / "ids").write_text("\n".join(message_id for one in made for message_id in one.ids or ()))


def drop_pages(path: Path) -> None:
    """Take the files below a path out of the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def measure(args: argparse.Namespace, path: Path) -> dict[str, float]:
    topic = Topic(name="t", number=1, settings=TopicSettings(buckets=args.buckets))
    made = args.store or path
    if not (made / "ids").exists():
        await create(args, topic, made)
    ids = (made / "ids").read_text().split("\n")
    if args.store is not None:
        shutil.copytree(made / "store", path / "store")
    storage = RocksStorage(path / "store", journal=True)
    await storage.open(NOW)
    figures: dict[str, float] = {}
    chance = random.Random(11)
    for name, call in calls_of(storage, topic, chance).items():
        drawn = chance.sample(ids, min(args.changes, len(ids)))
        if args.cold:
            drop_pages(path)
        profile = cProfile.Profile() if args.profile == name else None
        wall, cpu = time.perf_counter(), time.process_time()
        if profile is not None:
            profile.enable()
        await run_calls(call, drawn, args.batch)
        if profile is not None:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        figures[f"{name}_per_s"] = round(len(drawn) / (time.perf_counter() - wall))
        figures[f"{name}_cpu_us"] = round((time.process_time() - cpu) / len(drawn) * 1e6, 2)
    await storage.close()
    return figures


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--buckets", type=int, default=16)
    parser.add_argument("--unmerged", action="store_true", help="do not wait until the messages are merged")
    parser.add_argument("--profile", choices=("get", "move", "edit", "cancel"), default=None)
    parser.add_argument("--store", type=Path, default=None, help="where the messages are made once")
    parser.add_argument("--cold", action="store_true", help="begin each operation without the page cache")
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    print(json.dumps({"rows": args.rows, "batch": args.batch, "unmerged": args.unmerged} | figures))


if __name__ == "__main__":
    main()
