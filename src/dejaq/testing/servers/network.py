"""Machines that are network namespaces of this one, joined by a bridge, so that a test can cut any connection.

    with Network.open() as network:
        machine = network.machine("db-0")
        subprocess.Popen([*machine.wrapper, "server", "--listen", machine.host])
        machine.cut([other.host])                       # no packet passes, as with a pulled cable
        machine.cut([other.host], inward=False)         # it still receives from the other

`machine.mend()` ends its cuts.

The test's own process is outside, at `network.host`. When the system does not allow us to create namespaces (we are not
root, or lack `ip` or `nft`), machines are loopback addresses: a test can kill processes there, but cut nothing.
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_NAMES = "dejaq-"


class NamespacesMissing(RuntimeError):
    """This machine does not allow us to create network namespaces."""


class Machine:
    """One machine on the network; `wrapper` is the command that runs another command on it."""

    def __init__(self, name: str, host: str, *, namespace: str | None = None) -> None:
        self.name = name
        self.host = host
        self._namespace = namespace

    @property
    def wrapper(self) -> list[str]:
        """The beginning of a command that runs on this machine; the process id stays the same."""
        return ["nsenter", f"--net=/run/netns/{self._namespace}", "--"] if self._namespace else []

    def cut(self, hosts: Sequence[str] = (), *, inward: bool = True, outward: bool = True) -> None:
        """Drop every packet from these hosts (`inward`), to them (`outward`), or both; without
        hosts, from and to all.
        """
        others = f"{{ {', '.join(hosts)} }}" if hosts else "0.0.0.0/0"
        inner = f"iif != lo ip saddr {others} drop" if inward else ""
        outer = f"oif != lo ip daddr {others} drop" if outward else ""
        self._filter(
            "table inet cut {\n"
            f" chain inward {{ type filter hook input priority 0; {inner}\n }}\n"
            f" chain outward {{ type filter hook output priority 0; {outer}\n }}\n"
            "}\n"
        )

    def mend(self) -> None:
        """Let all packets pass again."""
        self._filter("")

    def kill(self) -> None:
        """Kill every process on this machine at once, as a power failure would."""
        if self._namespace is None:
            raise NamespacesMissing(f"{self.name} is not a separate machine; kill its processes one by one")
        for pid in _run("ip", "netns", "pids", self._namespace).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _filter(self, table: str) -> None:
        if self._namespace is None:
            raise NamespacesMissing(f"{self.name} is not a separate machine; its connections cannot be cut")
        rules = f"table inet cut\ndelete table inet cut\n{table}"
        _run(*self.wrapper, "nft", "-f", "-", text=rules)


class Network:
    """A number of machines, and the test itself at `host`."""

    def __init__(self, *, reason: str | None = None) -> None:
        """With a `reason` why namespaces are not available, machines are loopback addresses."""
        self.reason = reason
        number = os.getpid()
        self._net = f"{127 if reason else 10}.{200 + (number >> 8) % 50}.{number % 256}"
        self._bridge = f"dejaq{number}"
        self._machines: dict[str, Machine] = {}
        self._numbers = itertools.count(2)

    @property
    def host(self) -> str:
        """The address of the test's own process."""
        return f"{self._net}.1"

    @classmethod
    def open(cls) -> Network:
        """A network of namespaces; when that is not permitted, a network on loopback, and the reason is printed."""
        try:
            return cls.of_namespaces()
        except NamespacesMissing as error:
            print(f"no network namespaces, so no connection is cut: {error}")
            return cls(reason=str(error))

    @classmethod
    def of_namespaces(cls) -> Network:
        """A network of namespaces; raises NamespacesMissing."""
        missing = [name for name in ("ip", "nft", "nsenter") if shutil.which(name) is None]
        if missing:
            raise NamespacesMissing(f"there is no {', '.join(missing)}; run scripts/install_system.sh")
        if os.geteuid() != 0:
            raise NamespacesMissing("only root may create them")
        _sweep()
        network = cls()
        try:
            _run("ip", "link", "add", network._bridge, "type", "bridge")
            atexit.register(network.close)
            _run("ip", "addr", "add", f"{network.host}/24", "dev", network._bridge)
            _run("ip", "link", "set", network._bridge, "up")
            network.machine("probe").cut()
        except RuntimeError as error:
            network.close()
            raise NamespacesMissing(str(error)) from None
        network._remove("probe")
        return network

    def machine(self, name: str) -> Machine:
        """The machine of this name; it is created at the first call."""
        if name not in self._machines:
            # No number is used twice: the kernel needs time to remove a deleted namespace.
            host = f"{self._net}.{next(self._numbers)}"
            self._machines[name] = Machine(name, host) if self.reason else self._make(name, host)
        return self._machines[name]

    def _make(self, name: str, host: str) -> Machine:
        namespace, cable = f"{_NAMES}{os.getpid()}-{name}", f"v{os.getpid()}n{host.rpartition('.')[2]}"
        _run("ip", "netns", "add", namespace)
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "link", "set", cable, "master", self._bridge, "up")
        machine = Machine(name, host, namespace=namespace)
        steps = f"link set lo up\naddr add {host}/24 dev eth0\nlink set eth0 up\n"
        _run(*machine.wrapper, "ip", "-batch", "-", text=steps)
        return machine

    def _remove(self, name: str) -> None:
        self._machines.pop(name)
        _run("ip", "netns", "del", f"{_NAMES}{os.getpid()}-{name}", check=False)

    def close(self) -> None:
        """Remove every machine, with the processes that still run there."""
        if self.reason is None:
            for name, machine in list(self._machines.items()):
                machine.kill()
                self._remove(name)
            _run("ip", "link", "del", self._bridge, check=False)
        self._machines.clear()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sweep() -> None:
    """Remove the namespaces and bridges of tests that were killed."""
    for line in _run("ip", "netns", "list").splitlines():
        match = re.match(rf"{_NAMES}(\d+)-", line)
        if match is not None and not Path(f"/proc/{match[1]}").exists():
            name = line.split()[0]
            Machine(name, "", namespace=name).kill()
            _run("ip", "netns", "del", name, check=False)
    for line in _run("ip", "-brief", "link", "show", "type", "bridge").splitlines():
        match = re.match(r"dejaq(\d+)\s", line)
        if match is not None and not Path(f"/proc/{match[1]}").exists():
            _run("ip", "link", "del", line.split()[0], check=False)


def _run(*command: str, text: str = "", check: bool = True) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
