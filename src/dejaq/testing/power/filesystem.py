"""Answers the kernel's requests for a tree in memory, and cuts the power after a given number of changes."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from fnmatch import fnmatch
from random import Random

from dejaq.testing.power import fuse
from dejaq.testing.power.fuse import FuseCall
from dejaq.testing.power.tree import Directory, Node, RegularFile, Tree

_BLOCK_BYTES = 4_096
# What the file system seems to have, in blocks and files.
_BLOCKS, _FILES = 1 << 20, 1 << 20


class FileSystem:
    """One tree. Patterns in `unsynced` name files and directories whose syncs are answered and not done."""

    def __init__(self, chance: Random, unsynced: tuple[str, ...] = ()) -> None:
        self.tree = Tree(chance)
        self.unsynced = unsynced
        # The requests that changed something or made it durable.
        self.changes = 0
        self._nodes: dict[int, Node] = {}
        self._listings: dict[int, list[tuple[str, Node]]] = {}
        self._listing = 0
        self._answers: dict[FuseCall, Callable[[Node, memoryview], bytes]] = {
            FuseCall.LOOKUP: self._lookup,
            FuseCall.GETATTR: self._getattr,
            FuseCall.SETATTR: self._setattr,
            FuseCall.MKNOD: self._mknod,
            FuseCall.MKDIR: self._mkdir,
            FuseCall.UNLINK: self._unlink,
            FuseCall.RMDIR: self._rmdir,
            FuseCall.RENAME: self._rename,
            FuseCall.RENAME2: self._rename2,
            FuseCall.LINK: self._link,
            FuseCall.OPEN: lambda node, body: fuse.OPENED.pack(0, fuse.KEEP_CACHE),
            FuseCall.READ: self._read,
            FuseCall.WRITE: self._write,
            FuseCall.STATFS: self._statfs,
            FuseCall.RELEASE: lambda node, body: b"",
            FuseCall.FSYNC: self._fsync,
            FuseCall.OPENDIR: self._opendir,
            FuseCall.READDIR: self._readdir,
            FuseCall.RELEASEDIR: self._releasedir,
            FuseCall.FSYNCDIR: self._fsync,
            FuseCall.CREATE: self._create,
            FuseCall.FALLOCATE: self._fallocate,
        }

    def begin(self) -> None:
        """Forget what another mount was given."""
        self._nodes = {1: self.tree.root}
        self._listings.clear()

    def answer(self, request: memoryview) -> bytes | None:
        """The answer to a request; None where the kernel expects none."""
        _, code, unique, number, *_ = fuse.REQUEST.unpack_from(request)
        body = request[fuse.REQUEST.size :]
        try:
            call = FuseCall(code)
        except ValueError:
            return fuse.ANSWER.pack(fuse.ANSWER.size, -errno.ENOSYS, unique)
        if call in fuse.WITHOUT_ANSWER:
            self._forget(call, number, body)
            return None
        try:
            content = self._content(call, number, body)
        except OSError as error:
            return fuse.ANSWER.pack(fuse.ANSWER.size, -(error.errno or errno.EIO), unique)
        if call in fuse.CHANGING:
            self.changes += 1
        return fuse.ANSWER.pack(fuse.ANSWER.size + len(content), 0, unique) + content

    def _content(self, call: FuseCall, number: int, body: memoryview) -> bytes:
        if call is FuseCall.INIT:
            return fuse.INIT.pack(fuse.MAJOR, fuse.MINOR, 1 << 17, fuse.FLAGS, 12, 9, fuse.WRITE_BYTES_MAX, 1, 64, 0, 0)
        if call is FuseCall.DESTROY:
            return b""
        node = self._nodes.get(number)
        if node is None:
            raise _error(errno.ENOENT)
        return self._answers[call](node, body)

    # Nodes that the kernel knows

    def _entry(self, node: Node) -> bytes:
        node.lookups += 1
        self._nodes[node.number] = node
        valid = fuse.VALID_SECONDS
        return fuse.ENTRY_HEAD.pack(node.number, 0, valid, valid, 0, 0) + _attributes(node)

    def _forget(self, call: FuseCall, number: int, body: memoryview) -> None:
        if call is FuseCall.FORGET:
            self._forget_one(number, *fuse.FORGET.unpack_from(body))
        elif call is FuseCall.BATCH_FORGET:
            (count,) = fuse.FORGET_MANY.unpack_from(body)
            some = body[fuse.FORGET_MANY.size :][: count * fuse.FORGET_ONE.size]
            for one, lookups in fuse.FORGET_ONE.iter_unpack(some):
                self._forget_one(one, lookups)

    def _forget_one(self, number: int, lookups: int) -> None:
        node = self._nodes.get(number)
        if node is not None and number != 1:
            node.lookups -= lookups
            if node.lookups <= 0:
                del self._nodes[number]

    def _lookup(self, node: Node, body: memoryview) -> bytes:
        return self._entry(_child(node, _names(body)[0]))

    def _getattr(self, node: Node, body: memoryview) -> bytes:
        return fuse.ATTRIBUTES_HEAD.pack(fuse.VALID_SECONDS, 0) + _attributes(node)

    def _setattr(self, node: Node, body: memoryview) -> bytes:
        valid, _, size, _, _, _, _, _, _, _, mode, *_ = fuse.SETATTR.unpack_from(body)
        if valid & fuse.SET_SIZE:
            _file(node).data.resize(size)
        if valid & fuse.SET_MODE:
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        return self._getattr(node, body)

    # Names

    def _mknod(self, node: Node, body: memoryview) -> bytes:
        mode = int.from_bytes(body[:4], "little")
        if not stat.S_ISREG(mode):
            raise _error(errno.EPERM)
        return self._entry(self._new_file(node, _names(body[16:])[0], mode))

    def _create(self, node: Node, body: memoryview) -> bytes:
        mode = int.from_bytes(body[4:8], "little")
        entry = self._entry(self._new_file(node, _names(body[16:])[0], mode))
        return entry + fuse.OPENED.pack(0, fuse.KEEP_CACHE)

    def _new_file(self, node: Node, name: str, mode: int) -> RegularFile:
        return self.tree.add_file(_free(node, name), name, mode)

    def _mkdir(self, node: Node, body: memoryview) -> bytes:
        (name,) = _names(body[8:])
        return self._entry(self.tree.add_directory(_free(node, name), name, int.from_bytes(body[:4], "little")))

    def _unlink(self, node: Node, body: memoryview) -> bytes:
        (name,) = _names(body)
        _file(_child(node, name))
        self.tree.remove(_directory(node), name)
        return b""

    def _rmdir(self, node: Node, body: memoryview) -> bytes:
        (name,) = _names(body)
        if _directory(_child(node, name)).names:
            raise _error(errno.ENOTEMPTY)
        self.tree.remove(_directory(node), name)
        return b""

    def _rename(self, node: Node, body: memoryview) -> bytes:
        return self._move(node, body[:8], body[8:])

    def _rename2(self, node: Node, body: memoryview) -> bytes:
        if any(body[8:12]):
            raise _error(errno.EINVAL)
        return self._move(node, body[:8], body[16:])

    def _move(self, node: Node, number: memoryview, names: memoryview) -> bytes:
        target = _directory(self._nodes[int.from_bytes(number, "little")])
        name, new_name = _names(names)
        replaced = target.names.get(new_name)
        if isinstance(replaced, Directory) and replaced.names:
            raise _error(errno.ENOTEMPTY)
        if replaced is not _child(node, name):
            self.tree.rename(_directory(node), name, target, new_name)
        return b""

    def _link(self, node: Node, body: memoryview) -> bytes:
        file = _file(self._nodes[int.from_bytes(body[:8], "little")])
        (name,) = _names(body[8:])
        self.tree.link(_free(node, name), name, file)
        return self._entry(file)

    def _opendir(self, node: Node, body: memoryview) -> bytes:
        self._listing += 1
        self._listings[self._listing] = [(".", node), ("..", node), *_directory(node).names.items()]
        return fuse.OPENED.pack(self._listing, 0)

    def _readdir(self, node: Node, body: memoryview) -> bytes:
        handle, offset, size, *_ = fuse.TRANSFER.unpack_from(body)
        listed = b""
        for place, (name, child) in enumerate(self._listings[handle][offset:], offset + 1):
            encoded = os.fsencode(name)
            kind = stat.S_IFMT(child.mode) >> 12
            entry = fuse.ENTRY_OF_DIRECTORY.pack(child.number, place, len(encoded), kind) + encoded
            entry += bytes(-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed

    def _releasedir(self, node: Node, body: memoryview) -> bytes:
        self._listings.pop(int.from_bytes(body[:8], "little"), None)
        return b""

    # Content

    def _read(self, node: Node, body: memoryview) -> bytes:
        _, offset, size, *_ = fuse.TRANSFER.unpack_from(body)
        return bytes(_file(node).data.content[offset : offset + size])

    def _write(self, node: Node, body: memoryview) -> bytes:
        _, offset, size, *_ = fuse.TRANSFER.unpack_from(body)
        _file(node).data.put(offset, body[fuse.TRANSFER.size :][:size])
        node.modified = time.time()
        return fuse.WRITTEN.pack(size)

    def _fallocate(self, node: Node, body: memoryview) -> bytes:
        _, offset, length, mode = fuse.ALLOCATE.unpack_from(body)
        if mode not in (0, fuse.KEEP_SIZE):
            raise _error(errno.EOPNOTSUPP)
        data = _file(node).data
        if not mode and len(data.content) < offset + length:
            data.resize(offset + length)
        return b""

    def _fsync(self, node: Node, body: memoryview) -> bytes:
        if self._left_out(node):
            return b""
        if isinstance(node, Directory):
            self.tree.sync(node)
        else:
            _file(node).data.sync()
        return b""

    def _left_out(self, node: Node) -> bool:
        """Whether a planted bug says that this sync is missing."""
        if not self.unsynced:
            return False
        names = [name for one in self._nodes.values() if isinstance(one, Directory) for name in _names_of(one, node)]
        return any(fnmatch(name, pattern) for name in names for pattern in self.unsynced)

    def _statfs(self, node: Node, body: memoryview) -> bytes:
        return fuse.STATISTICS.pack(_BLOCKS, _BLOCKS, _BLOCKS, _FILES, _FILES, _BLOCK_BYTES, 255, _BLOCK_BYTES)


def _names_of(directory: Directory, node: Node) -> list[str]:
    """The names that a node has in a directory."""
    return [name for name, child in directory.names.items() if child is node]


def _attributes(node: Node) -> bytes:
    size = len(node.data.content) if isinstance(node, RegularFile) else _BLOCK_BYTES
    seconds, rest = divmod(int(node.modified * 1e9), 1_000_000_000)
    links = node.links if isinstance(node, RegularFile) else 2
    blocks, times = -(-size // 512), (seconds,) * 3 + (rest,) * 3
    return fuse.ATTRIBUTES.pack(
        node.number, size, blocks, *times, node.mode, links, os.getuid(), os.getgid(), 0, _BLOCK_BYTES, 0
    )


def _names(body: memoryview) -> list[str]:
    return [os.fsdecode(name) for name in bytes(body).rstrip(b"\0").split(b"\0")]


def _child(node: Node, name: str) -> Node:
    child = _directory(node).names.get(name)
    if child is None:
        raise _error(errno.ENOENT)
    return child


def _free(node: Node, name: str) -> Directory:
    directory = _directory(node)
    if name in directory.names:
        raise _error(errno.EEXIST)
    return directory


def _directory(node: Node) -> Directory:
    if not isinstance(node, Directory):
        raise _error(errno.ENOTDIR)
    return node


def _file(node: Node) -> RegularFile:
    if not isinstance(node, RegularFile):
        raise _error(errno.EISDIR)
    return node


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
