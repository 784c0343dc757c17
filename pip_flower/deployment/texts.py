"""The text files of a deployment's bundles. Whatever starts a host's part (a person, systemd, compose) runs
the `start.sh` of its bundle."""

import os
import re

from pip_flower.deployment.plan import CONNECTION, SERVER, Plan

# Where a host keeps its bundle, unless it is started from elsewhere.
PLACE = "/etc/pip-flower"
# The variable that has a node dial another address than the one in its bundle.
_ELSEWHERE = "PIP_FLOWER_SUPERLINK"

_PREPARED = """\
#!/bin/sh
# {title}
set -eu
here=$(cd "$(dirname "$0")" && pwd)
state=${{PIP_FLOWER_HOME:-$here/state}}
# An empty directory of its own: Flower imports apps with the working directory on the path.
mkdir -p "$state/cwd"
export PATH="${{PIP_FLOWER_BIN:-/opt/pip-flower/bin}}:$PATH"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
"""

_SUPERLINK = """\
export FLWR_HOME="${{FLWR_HOME:-$state/flwr}}"
# Flower wants an absolute path in there.
mkdir -p "$FLWR_HOME"
sed "s#{place}#$here#" "$here/config.toml" > "$FLWR_HOME/config.toml"
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${{FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.5}}"
cd "$state/cwd"
exec flower-superlink {security} \\
    --host 127.0.0.1 --port {control_port} \\
    --fleet-api-type grpc-rere --fleet-api-address 0.0.0.0:{fleet_port} \\
    --disable-runtime-dependency-installation --database "$state/superlink.db"
"""

_NODE = """\
export FLWR_HOME="${{FLWR_HOME:-$state/flwr}}"
export PIP_FLOWER_STATE="${{PIP_FLOWER_STATE:-$state/clients}}"
export PIP_FLOWER_CACHE="${{PIP_FLOWER_CACHE:-$state/cache}}"
cd "$state/cwd"
exec python -P -m pip_flower.deployment.node {security} \\
    --superlink "${{{elsewhere}:-{fleet_address}}}" --host 127.0.0.1 --port {port} \\
    --node-config "$(grep -v '^#' "$here/node.conf" | tr '\\n' ' ')"
"""

_SERVER_SECURITY = (
    '--ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.pem" \\\n'
    '    --ssl-keyfile "$here/server.key" --enable-supernode-auth'
)
_NODE_SECURITY = '--root-certificates "$here/ca.crt" \\\n    --auth-supernode-private-key "$here/node.key"'

_NODE_CONFIG = """\
# What this node is. Remove the # of a line below and give an absolute path where it differs from the run's.
partition-id={node}
# data-dir="/data/images"
# weights="/data/backbone.safetensors"
# device="cuda"
"""

_UNIT = """\
[Unit]
Description=pip-flower {title}
Wants=network-online.target
After=network-online.target
# A node that comes back early is refused until the SuperLink has noticed that it was gone: keep trying.
StartLimitIntervalSec=0

[Service]
ExecStart=/etc/pip-flower/start.sh
{more}Restart=always
RestartSec=5
User=pip-flower
StateDirectory=pip-flower
StateDirectoryMode=0700
Environment=HOME=/var/lib/pip-flower PIP_FLOWER_HOME=/var/lib/pip-flower
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=full
ProtectHome=read-only

[Install]
WantedBy=multi-user.target
"""
_REGISTERS = "ExecStartPost=/opt/pip-flower/bin/pip-flower deploy register /etc/pip-flower\n"

# How compose's containers look; the server's certificate is for its name there, too.
_COMPOSE_SERVICE = """\
  {name}:
    image: ${{PIP_FLOWER_IMAGE:-pip-flower}}
    command: [/etc/pip-flower/start.sh]
    init: true
    restart: always
    environment:
      PIP_FLOWER_BIN: /usr/local/bin
      PIP_FLOWER_HOME: /var/lib/pip-flower
{dials}    volumes: ["./{name}:/etc/pip-flower:ro", "{name}:/var/lib/pip-flower"]
"""

DOCKERFILE = """\
# docker build --tag pip-flower --file Dockerfile DIRECTORY_OF_THE_PROJECT
FROM python:3.11-slim
WORKDIR /src
COPY pyproject.toml README.md LICENSE server_app.py client_app.py ./
COPY conf conf
COPY pip_flower pip_flower
RUN pip install --no-cache-dir . && rm -rf ./*
"""


def start_superlink(plan: Plan) -> str:
    """The server's start.sh."""
    title = "The SuperLink: nodes dial the Fleet API; `flwr` reaches the Control API on this machine only."
    security = _SERVER_SECURITY if plan.tls else "--insecure"
    return (_PREPARED + _SUPERLINK).format(
        title=title,
        security=security,
        place=PLACE,
        control_port=plan.control_port,
        fleet_port=plan.fleet_port,
    )


def start_node(plan: Plan, node: int) -> str:
    """A node's start.sh."""
    return (_PREPARED + _NODE).format(
        title=f"Node {node}: a SuperNode whose rounds do not wait for slow polling.",
        security=_NODE_SECURITY if plan.tls else "--insecure",
        elsewhere=_ELSEWHERE,
        fleet_address=plan.fleet_address,
        port=plan.node_port + node,
    )


def dialled(script: str) -> tuple[str, int] | None:
    """The host and port of the SuperLink that a start.sh makes its program dial; none for the server's."""
    written = re.search(rf"\$\{{{_ELSEWHERE}:-([^}}]+)\}}", script)
    if not written:
        return None
    host, _, port = (os.environ.get(_ELSEWHERE) or written[1]).rpartition(":")
    return host.strip("[]"), int(port)


def node_config(node: int) -> str:
    """A node's node.conf."""
    return _NODE_CONFIG.format(node=node)


def flower_config(plan: Plan) -> str:
    """Flower's config.toml for users of the server."""
    secure = f'root-certificates = "{PLACE}/ca.crt"' if plan.tls else "insecure = true"
    return (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "127.0.0.1:{plan.control_port}"\n{secure}\n'
    )


def superlink_unit(plan: Plan) -> str:
    """The server's systemd unit."""
    return _UNIT.format(title="SuperLink", more=_REGISTERS if plan.tls else "")


def node_unit(node: int) -> str:
    """A node's systemd unit."""
    return _UNIT.format(title=f"node {node}", more="")


def compose(plan: Plan) -> str:
    """The same hosts as containers of one machine, for a trial or as a pattern: `docker compose up`."""
    names = [SERVER, *(f"node-{node}" for node in range(plan.nodes))]
    dials = f"      {_ELSEWHERE}: {SERVER}:{plan.fleet_port}\n"
    services = [_COMPOSE_SERVICE.format(name=name, dials="" if name == SERVER else dials) for name in names]
    return "services:\n" + "".join(services) + "volumes:\n" + "".join(f"  {name}: {{}}\n" for name in names)
