"""Writes a directory for each host of a deployment: all that host needs, and no other host's secrets."""

import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

from pip_flower.config.schema import ConfigError
from pip_flower.deployment import texts
from pip_flower.deployment.certificates import authority, node_key, server_certificate
from pip_flower.deployment.plan import SERVER, Plan
from pip_flower.storage.files import write_bytes, write_text

NODE_CONFIG = "node.conf"


def node_name(node: int) -> str:
    """The name of a node's bundle."""
    return f"node-{node}"


def write_bundles(directory: Path, plan: Plan) -> None:
    """Make or complete `directory`. Keys that are there stay; everything else is written anew, so that more
    nodes, another host or a fresh server certificate need only another call."""
    server = directory / SERVER
    nodes = [directory / node_name(node) for node in range(plan.nodes)]
    for bundle in (server, *nodes):
        bundle.mkdir(mode=0o700, parents=True, exist_ok=True)
    if plan.tls:
        _write_keys(directory, server, nodes, plan)
    _write_script(server / "start.sh", texts.start_superlink(plan))
    write_text(server / "config.toml", texts.flower_config(plan))
    write_text(server / "pip-flower.service", texts.superlink_unit(plan))
    for node, bundle in enumerate(nodes):
        _write_script(bundle / "start.sh", texts.start_node(plan, node))
        if not (bundle / NODE_CONFIG).exists():
            write_text(bundle / NODE_CONFIG, texts.node_config(node))
        write_text(bundle / "pip-flower.service", texts.node_unit(node))
    write_text(directory / "compose.yaml", texts.compose(plan))
    write_text(directory / "Dockerfile", texts.DOCKERFILE)


def bundle_settings(bundle: Path) -> dict[str, Any]:
    """What the node of a bundle is told about itself, and where start.sh has it keep things."""
    try:
        given = tomllib.loads((bundle / NODE_CONFIG).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(bundle / NODE_CONFIG), str(error), 'Write key=1 or key="text" lines') from None
    home = Path(os.environ.get("PIP_FLOWER_HOME") or bundle / "state")
    return {"state-dir": str(home / "clients"), "cache-dir": str(home / "cache"), **given}


def _write_keys(directory: Path, server: Path, nodes: list[Path], plan: Plan) -> None:
    """The authority's key signs the server's certificate and belongs to no host; nodes share no secret."""
    own = directory / "authority"
    own.mkdir(mode=0o700, exist_ok=True)
    signer = authority(own / "ca.crt", own / "ca.key")
    for bundle in (server, *nodes):
        shutil.copyfile(own / "ca.crt", bundle / "ca.crt")
    server_certificate(server / "server.pem", server / "server.key", plan.certified, signer)
    admitted = server / "nodes"
    admitted.mkdir(exist_ok=True)
    for bundle in nodes:
        write_bytes(admitted / f"{bundle.name}.pub", node_key(bundle / "node.key"))


def _write_script(path: Path, text: str) -> None:
    write_text(path, text)
    path.chmod(0o755)
