"""Machines that are network namespaces of this one, joined by a bridge, so that a test can cut any way between two.

    with Network.open() as network:
        machine = network.machine("db-0")
        subprocess.Popen([*machine.wrapper, "server", "--listen", machine.host])
        machine.cut([other.host])                       # silence both ways, as a pulled cable
        machine.cut([other.host], inward=False)         # it still hears the other
        machine.mend()

The test's own process stands outside, at `network.host`. Where the system does not let us make namespaces (we are not
root, or lack `ip` or `nft`), machines are addresses of loopback: processes can be killed there, but nothing be cut.
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
    """This machine lets us make no network namespaces."""


class Machine:
    """One place on the network; `wrapper` is the command that runs another there."""

    def __init__(self, name: str, host: str, *, namespace: str | None = None) -> None:
        self.name = name
        self.host = host
        self._namespace = namespace

    @property
    def wrapper(self) -> list[str]:
        """What a command is to begin with; it keeps its process id."""
        return ["nsenter", f"--net=/run/netns/{self._namespace}", "--"] if self._namespace else []

    def cut(self, hosts: Sequence[str] = (), *, inward: bool = True, outward: bool = True) -> None:
        """Drop every packet from these hosts (`inward`), to them (`outward`), or both; without hosts, of all."""
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
        """Let everything pass again."""
        self._filter("")

    def kill(self) -> None:
        """End every process on this machine at once, as a power cut would."""
        if self._namespace is None:
            raise NamespacesMissing(f"{self.name} is no machine of its own; kill its processes one by one")
        for pid in _run("ip", "netns", "pids", self._namespace).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _filter(self, table: str) -> None:
        if self._namespace is None:
            raise NamespacesMissing(f"{self.name} is no machine of its own; its ways cannot be cut")
        rules = f"table inet cut\ndelete table inet cut\n{table}"
        _run(*self.wrapper, "nft", "-f", "-", text=rules)


class Network:
    """So many machines, and the test itself at `host`."""

    def __init__(self, *, reason: str | None = None) -> None:
        """With a `reason` why there are no namespaces, machines are addresses of loopback."""
        self.reason = reason
        number = os.getpid()
        self._net = f"{127 if reason else 10}.{200 + (number >> 8) % 50}.{number % 256}"
        self._bridge = f"dejaq{number}"
        self._machines: dict[str, Machine] = {}
        self._numbers = itertools.count(2)

    @property
    def host(self) -> str:
        """Where the test's own process is."""
        return f"{self._net}.1"

    @classmethod
    def open(cls) -> Network:
        """A network of namespaces; where that is not permitted, one on loopback, and the reason is printed."""
        try:
            return cls.of_namespaces()
        except NamespacesMissing as error:
            print(f"no network namespaces, so ways are not cut: {error}")
            return cls(reason=str(error))

    @classmethod
    def of_namespaces(cls) -> Network:
        """A network of namespaces; raises NamespacesMissing."""
        missing = [name for name in ("ip", "nft", "nsenter") if shutil.which(name) is None]
        if missing:
            raise NamespacesMissing(f"there is no {', '.join(missing)}; run scripts/install_system.sh")
        if os.geteuid() != 0:
            raise NamespacesMissing("only root may make them")
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
        """A machine of this name, made when it is first asked for."""
        if name not in self._machines:
            # No number is used twice: the kernel takes its time to remove what is gone.
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
        """End every machine, with what still runs there."""
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
