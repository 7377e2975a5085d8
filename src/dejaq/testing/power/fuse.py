"""The part of the kernel's FUSE protocol that a file system in memory needs. No library: requests are read from
/dev/fuse and answered there.
"""

from __future__ import annotations

import ctypes
import errno
import os
from enum import IntEnum
from pathlib import Path
from struct import Struct

from dejaq.testing.servers.faults import FaultUnavailable

MAJOR, MINOR = 7, 31
WRITE_BYTES_MAX = 256 * 1024
# The longest request: a write with its headers.
REQUEST_BYTES_MAX = WRITE_BYTES_MAX + 4_096
# FUSE_BIG_WRITES and FUSE_MAX_PAGES: one write call is one request up to WRITE_BYTES_MAX.
FLAGS = 1 << 5 | 1 << 22
# FOPEN_KEEP_CACHE: nobody else changes the files.
KEEP_CACHE = 2
# How long the kernel may use names and attributes without a request.
VALID_SECONDS = 3_600

REQUEST = Struct("<IIQQIIII")
ANSWER = Struct("<IiQ")
INIT = Struct("<IIIIHHIIHHI28x")
ENTRY_HEAD = Struct("<QQQQII")
ATTRIBUTES_HEAD = Struct("<QI4x")
ATTRIBUTES = Struct("<QQQQQQIIIIIIIIII")
OPENED = Struct("<QI4x")
WRITTEN = Struct("<I4x")
STATISTICS = Struct("<QQQQQIII4x24x")
SETATTR = Struct("<I4xQQQQQQIIIIIIII")
TRANSFER = Struct("<QQIIQI4x")
SYNC = Struct("<QI4x")
ALLOCATE = Struct("<QQQI4x")
FORGET = Struct("<Q")
FORGET_MANY = Struct("<I4x")
FORGET_ONE = Struct("<QQ")
ENTRY_OF_DIRECTORY = Struct("<QQII")

SET_MODE, SET_SIZE = 1, 8
KEEP_SIZE = 1


class FuseCall(IntEnum):
    """The requests that are answered; for any other one the answer is ENOSYS."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


WITHOUT_ANSWER = frozenset({FuseCall.FORGET, FuseCall.BATCH_FORGET, FuseCall.INTERRUPT})
# What changes the disk, or makes a change durable.
CHANGING = frozenset(
    {
        FuseCall.SETATTR,
        FuseCall.MKNOD,
        FuseCall.MKDIR,
        FuseCall.UNLINK,
        FuseCall.RMDIR,
        FuseCall.RENAME,
        FuseCall.RENAME2,
        FuseCall.LINK,
    }
    | {FuseCall.WRITE, FuseCall.FSYNC, FuseCall.FSYNCDIR, FuseCall.CREATE, FuseCall.FALLOCATE}
)

_LIBC = ctypes.CDLL(None, use_errno=True)
_NOSUID_NODEV, _DETACH = 2 | 4, 2


def mount(path: Path) -> int:
    """Mount a new file system of this process; returns the descriptor of its requests."""
    try:
        descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as cause:
        raise FaultUnavailable(f"/dev/fuse cannot be opened: {cause}") from None
    options = f"fd={descriptor},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if _LIBC.mount(b"dejaq-power", bytes(path), b"fuse", _NOSUID_NODEV, options.encode()):
        number = ctypes.get_errno()
        os.close(descriptor)
        raise FaultUnavailable(f"a FUSE file system cannot be mounted here: {os.strerror(number)}")
    return descriptor


def unmount(path: Path) -> None:
    """Take the file system away at once, also while programs use it."""
    if _LIBC.umount2(bytes(path), _DETACH) and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
