"""Directories whose names survive a power cut only when their directory was synced."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from dejaq.testing.power.content import FileContent


class Node:
    """What a file and a directory have in common. `number` is its inode number."""

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = mode
        self.links = 0
        self.modified = time.time()
        # How often the kernel was given this node.
        self.lookups = 0


class RegularFile(Node):
    """A regular file."""

    def __init__(self, number: int, mode: int, chance: Random) -> None:
        super().__init__(number, stat.S_IFREG | mode)
        self.data = FileContent(chance)


class Directory(Node):
    """A directory: its names as programs see them, and as they would survive."""

    def __init__(self, number: int, mode: int) -> None:
        super().__init__(number, stat.S_IFDIR | mode)
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


@dataclass(frozen=True, slots=True)
class NameChange:
    """One call: it becomes durable as a whole. A name without a node is removed."""

    changes: tuple[tuple[Directory, str, Node | None], ...]

    def concerns(self, directory: Directory) -> bool:
        """Whether a sync of the directory makes it durable."""
        return any(one is directory for one, _, _ in self.changes)

    def make_durable(self) -> None:
        """Do it to the durable names."""
        for directory, name, node in self.changes:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node


class Tree:
    """All directories and files. Every operation raises OSError with the number that a file system would give."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._last = 1
        self.root = Directory(1, 0o755)
        # The changes of names that no sync of a directory covered yet, oldest first.
        self.pending: list[NameChange] = []

    def add_file(self, parent: Directory, name: str, mode: int) -> RegularFile:
        """Create an empty file."""
        self._last += 1
        file = RegularFile(self._last, mode & 0o7777, self._chance)
        self._change((parent, name, file))
        return file

    def add_directory(self, parent: Directory, name: str, mode: int) -> Directory:
        """Create an empty directory."""
        self._last += 1
        directory = Directory(self._last, mode & 0o7777)
        self._change((parent, name, directory))
        return directory

    def link(self, parent: Directory, name: str, node: Node) -> None:
        """Give a file another name."""
        self._change((parent, name, node))

    def remove(self, parent: Directory, name: str) -> None:
        """Remove a name."""
        self._change((parent, name, None))

    def rename(self, parent: Directory, name: str, target: Directory, new_name: str) -> None:
        """Move a name, and replace what has the new one."""
        self._change((parent, name, None), (target, new_name, parent.names[name]))

    def _change(self, *changes: tuple[Directory, str, Node | None]) -> None:
        for directory, name, node in changes:
            before = directory.names.pop(name, None)
            if before is not None:
                before.links -= 1
            if node is not None:
                directory.names[name] = node
                node.links += 1
            directory.modified = time.time()
        self.pending.append(NameChange(changes))

    def sync(self, directory: Directory) -> None:
        """Make the names in a directory durable."""
        for change in self.pending:
            if change.concerns(directory):
                change.make_durable()
        self.pending = [change for change in self.pending if not change.concerns(directory)]

    def cut(self, *, keep_some: bool) -> None:
        """Cut the power. With `keep_some`, some changes that were not synced are kept; otherwise none is."""
        if keep_some:
            # Most file systems keep the order of changes; some do not.
            first, share = self._chance.randrange(len(self.pending) + 1), self._chance.choice((0.0, 1.0, 0.5))
            ordered = self._chance.random() < 0.5
            for number, change in enumerate(self.pending):
                if (number < first) if ordered else (self._chance.random() < share):
                    change.make_durable()
        self.pending.clear()
        for node in self.nodes():
            node.lookups = node.links = 0
            if isinstance(node, Directory):
                node.names = dict(node.durable)
            elif isinstance(node, RegularFile):
                node.data.cut(keep_some=keep_some)
        for node in self.nodes():
            if isinstance(node, Directory):
                for child in node.names.values():
                    child.links += 1

    def nodes(self) -> Iterator[Node]:
        """Each node once that a durable name, or a name of a durable directory, leads to."""
        waiting: list[Node] = [self.root]
        seen = {self.root.number}
        while waiting:
            node = waiting.pop()
            yield node
            if isinstance(node, Directory):
                for child in node.durable.values():
                    if child.number not in seen:
                        seen.add(child.number)
                        waiting.append(child)
