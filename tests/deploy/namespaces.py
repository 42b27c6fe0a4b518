"""Network namespaces as pods: each has one address, and a wire to those it may talk to."""

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def available() -> bool:
    if os.geteuid():
        return False
    probe = "ip link add name a0 type veth peer name b0"
    return not subprocess.run(["unshare", "-n", "sh", "-c", probe], capture_output=True).returncode


class Namespaces:
    """Names to addresses; what is started in one sees only its own wires."""

    def __init__(self, holders: dict[str, "subprocess.Popen[bytes]"]) -> None:
        self._holders = holders
        self.address = {name: f"10.77.0.{i}" for i, name in enumerate(holders, 1)}
        for name, address in self.address.items():
            self._ip(name, f"address add {address}/32 dev lo")
            self._ip(name, "link set lo up")

    def wire(self, one: str, other: str) -> None:
        """Lets both reach each other."""
        ends = {one: f"to-{other}", other: f"to-{one}"}
        peer = f"peer name {ends[other]} netns {self._holders[other].pid}"
        self._ip(one, f"link add name {ends[one]} type veth {peer}")
        for name, far in ((one, other), (other, one)):
            self._ip(name, f"link set {ends[name]} up")
            there, here = self.address[far], self.address[name]
            self._ip(name, f"route add {there}/32 dev {ends[name]} src {here}")

    def command(self, name: str, *command: str) -> list[str]:
        """The same command, inside."""
        return ["nsenter", "--target", str(self._holders[name].pid), "--net", *command]

    def run(self, name: str, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.command(name, *command), capture_output=True, text=True)

    def start(self, name: str, *command: str) -> "subprocess.Popen[str]":
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(self.command(name, *command), text=True, **pipes)

    def _ip(self, name: str, command: str) -> None:
        done = self.run(name, "ip", *command.split())
        assert not done.returncode, done.stderr


@contextmanager
def namespaces(names: Iterable[str]) -> Iterator[Namespaces]:
    """Gone when the block ends, wires included."""
    hold = ["unshare", "--net", "sh", "-c", "echo; exec sleep 600"]
    holders = {name: subprocess.Popen(hold, stdout=subprocess.PIPE) for name in names}
    try:
        for holder in holders.values():
            assert holder.stdout is not None
            holder.stdout.readline()  # it is in its namespace now
        yield Namespaces(holders)
    finally:
        for holder in holders.values():
            holder.kill()
            holder.communicate()
