"""docs/deployment.md, command by command, on hosts that are directories of this machine."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from pip_flower.flower.programs import free_port

# One deployment at a time.
pytestmark = pytest.mark.xdist_group("deployment")
ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"^```bash host=(\S+)( background)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What other machines have to offer: copying to them, and becoming root on them.
SCP = '#!/bin/sh\nshift\nname=${2%%.*}\nmkdir -p "$HOSTS/$name" && cp -pr "$1" "$HOSTS/$name/"\n'
SUDO = '#!/bin/sh\necho "$*" >> "$HOSTS/sudo.log"\n'


@dataclass(frozen=True)
class Block:
    host: str
    background: bool
    text: str


def blocks() -> list[Block]:
    found = BLOCK.findall((ROOT / "docs" / "deployment.md").read_text())
    return [Block(host, bool(background), text) for host, background, text in found]


@pytest.fixture
def hosts(tmp_path: Path) -> dict[str, str]:
    """The environment that the commands run in."""
    programs = tmp_path / "programs"
    programs.mkdir()
    ours = f'#!/bin/sh\nexec {sys.executable} -P -m pip_flower.cli "$@"\n'
    for name, text in (("scp", SCP), ("sudo", SUDO), ("pip-flower", ours)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return os.environ | {
        "HOSTS": str(tmp_path),
        "HOME": str(tmp_path),
        "PATH": f"{programs}:{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PIP_FLOWER_BIN": f"{programs}:{BIN}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def test_every_command_of_the_guide_works(hosts: dict[str, str], tmp_path: Path) -> None:
    running = []
    fleet, control, nodes = free_port(), free_port(), 20_000 + free_port() % 10_000
    # One machine stands for three: the address, the ports and where programs are is what differs.
    places = {"--server-host server.example": "--server-host 127.0.0.1", "/opt/pip-flower/bin:": ""}
    try:
        for block in blocks():
            host = "server" if block.host == "systemd" else block.host
            directory = tmp_path / host
            directory.mkdir(exist_ok=True)
            text = block.text
            for old, new in places.items():
                text = text.replace(old, new)
            log = tmp_path / f"{host}.log"
            with log.open("a") as file:
                process = subprocess.Popen(
                    ["bash", "-euc", text],
                    cwd=directory,
                    env=hosts,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            if block.background:
                running.append(process)
                continue
            assert process.wait(timeout=900) == 0, f"{text}\n{_said(tmp_path)}"
            if "deploy init" in text:
                _use_free_ports(directory / "lab", fleet, control, nodes)
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=300)
    said = (tmp_path / "server.log").read_text()
    assert "node-0: registered" in said
    assert "pip-dualprompt" in said
    assert "finished" in said
    (run,) = (tmp_path / "server" / "runs").glob("digits-pip-dualprompt-*")
    assert (run / "model.safetensors").is_file()
    assert "results:" in (tmp_path / "operator.log").read_text()
    _check_systemd(tmp_path)
    _check_compose(tmp_path / "operator" / "lab")


def _said(hosts: Path) -> str:
    """The end of what each host said: a run may fail on one for what happened on another."""
    return "\n".join(f"== {log.name}\n{log.read_text()[-4000:]}" for log in sorted(hosts.glob("*.log")))


def _use_free_ports(lab: Path, fleet: int, control: int, nodes: int) -> None:
    for file in [*lab.glob("*/start.sh"), *lab.glob("*/config.toml")]:
        text = file.read_text().replace(":9092", f":{fleet}").replace("8000", str(control))
        for node in range(2):
            text = text.replace(f"--port {9094 + node}", f"--port {nodes + node}")
        file.write_text(text)


def _check_systemd(hosts: Path) -> None:
    """The commands name files that are there, and the unit runs what they install."""
    asked = (hosts / "sudo.log").read_text()
    assert "cp -r server /etc/pip-flower" in asked
    unit = (hosts / "server" / "server" / "pip-flower.service").read_text()
    assert "ExecStart=/etc/pip-flower/start.sh" in unit
    assert "Restart=always" in unit
    assert "User=pip-flower" in unit


def _check_compose(lab: Path) -> None:
    services = yaml.safe_load((lab / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", "node-0", "node-1"}
    for service in services.values():
        assert service["restart"] == "always"
        assert (lab / service["volumes"][0].split(":")[0] / "start.sh").is_file()
