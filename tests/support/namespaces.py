"""A network of its own for each node: namespaces on a bridge, where the machine allows them."""

import os
import shutil
import subprocess
from collections.abc import Sequence


class Namespaces:
    """`reason` says why there are none; then everything shares the machine's network."""

    def __init__(self, count: int) -> None:
        tag = f"pf{os.getpid() % 100_000}"
        self.bridge = f"{tag}b"
        self.names = [f"{tag}n{node}" for node in range(count)]
        third = os.getpid() % 250
        self.address = f"10.213.{third}.1"
        self._addresses = [f"10.213.{third}.{10 + node}" for node in range(count)]
        self.reason = self._made(tag)
        if self.reason:
            self.remove()
            self.address = "127.0.0.1"

    def prefix(self, node: int) -> Sequence[str]:
        """What a node's command is started with."""
        return () if self.reason else ("ip", "netns", "exec", self.names[node])

    def remove(self) -> None:
        for name in self.names:
            _ip("netns", "delete", name)
        _ip("link", "delete", self.bridge)

    def _made(self, tag: str) -> str:
        if shutil.which("ip") is None or os.geteuid() != 0:
            return "network namespaces need the ip command and root"
        steps = [
            ("link", "add", self.bridge, "type", "bridge"),
            ("address", "add", f"{self.address}/24", "dev", self.bridge),
            ("link", "set", self.bridge, "up"),
        ]
        for node, (name, address) in enumerate(zip(self.names, self._addresses, strict=True)):
            here, there = f"{tag}h{node}", f"{tag}t{node}"
            steps += [
                ("netns", "add", name),
                ("link", "add", here, "type", "veth", "peer", "name", there),
                ("link", "set", here, "master", self.bridge, "up"),
                ("link", "set", there, "netns", name),
                ("-n", name, "address", "add", f"{address}/24", "dev", there),
                ("-n", name, "link", "set", there, "up"),
                ("-n", name, "link", "set", "lo", "up"),
                ("netns", "exec", name, "true"),
            ]
        for step in steps:
            problem = _ip(*step)
            if problem:
                return f"this machine allows no network namespaces: ip {' '.join(step)}: {problem}"
        return ""


def _ip(*arguments: str) -> str:
    """The complaint of an `ip` command; empty if it has none."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    return done.stderr.strip() or f"exit status {done.returncode}" if done.returncode else ""
