"""What a deployment consists of."""

import ipaddress
import re
from dataclasses import dataclass

from pip_flower.config.schema import ConfigError

CONNECTION = "lab"
# The server's bundle, and its name among compose's containers.
SERVER = "server"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_LOCAL = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Plan:
    """A server that nodes dial under the first of `hosts`, and its nodes.

    The Fleet API (nodes) listens on all addresses; the Control API (`flwr`), whose users may run any code, on
    the server itself only. A node's own API is for its own processes; nodes of one machine need a port each.
    """

    nodes: int
    hosts: tuple[str, ...]
    tls: bool = True
    fleet_port: int = 9092
    control_port: int = 8000
    node_port: int = 9094

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ConfigError("--nodes", f"{self.nodes} is too few", "Give at least 1")
        for port in (self.fleet_port, self.control_port, self.node_port):
            if not 0 < port < 1 << 16:
                raise ConfigError("--fleet-port", f"{port} is no port", "Give 1 to 65535")
        for host in self.hosts:
            if not _is_address(host) and not _HOST.fullmatch(host):
                raise ConfigError("--server-host", f"{host!r} is no name or address", "Give what nodes dial")

    @property
    def fleet_address(self) -> str:
        """What nodes dial."""
        host = self.hosts[0]
        return f"[{host}]:{self.fleet_port}" if ":" in host else f"{host}:{self.fleet_port}"

    @property
    def certified(self) -> tuple[str, ...]:
        """Every name the server is reached under."""
        return tuple(dict.fromkeys((*self.hosts, *_LOCAL, SERVER)))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
