import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from pip_flower.cli import main
from pip_flower.config.schema import ConfigError
from pip_flower.deployment.bundles import write_bundles
from pip_flower.deployment.certificates import days_left
from pip_flower.deployment.plan import Plan
from pip_flower.deployment.texts import dialled, start_node, start_superlink


def test_keys_are_private_and_in_one_bundle_only(tmp_path: Path) -> None:
    write_bundles(tmp_path, Plan(3, ("10.0.0.5", "server.example")))
    keys = sorted(tmp_path.glob("**/*.key"))
    assert [str(key.relative_to(tmp_path)) for key in keys] == [
        "authority/ca.key",
        "node-0/node.key",
        "node-1/node.key",
        "node-2/node.key",
        "server/server.key",
    ]
    assert all(key.stat().st_mode & 0o777 == 0o600 for key in keys)
    secrets = [key.read_bytes() for key in keys]
    assert len(set(secrets)) == len(secrets)
    for file in tmp_path.rglob("*"):
        if file.is_file() and file not in keys:
            assert b"PRIVATE" not in file.read_bytes()


def test_the_certificate_is_for_what_nodes_dial_and_signed_by_our_authority(tmp_path: Path) -> None:
    write_bundles(tmp_path, Plan(1, ("10.0.0.5", "server.example")))
    certificate = x509.load_pem_x509_certificate((tmp_path / "server" / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example", "localhost", "server"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5", "127.0.0.1"]
    authority = x509.load_pem_x509_certificate((tmp_path / "node-0" / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    assert days_left(tmp_path / "server" / "server.pem") > 800


def test_the_server_knows_the_public_half_of_every_node_key(tmp_path: Path) -> None:
    write_bundles(tmp_path, Plan(2, ("localhost",)))
    for node in range(2):
        private = load_ssh_private_key((tmp_path / f"node-{node}" / "node.key").read_bytes(), None)
        public = load_ssh_public_key((tmp_path / "server" / "nodes" / f"node-{node}.pub").read_bytes())
        assert private.public_key() == public
        assert private.key_size == 384  # type: ignore[union-attr]


def test_a_second_call_adds_nodes_and_keeps_keys_and_settings(tmp_path: Path) -> None:
    write_bundles(tmp_path, Plan(1, ("old.example",)))
    kept = [tmp_path / name for name in ("authority/ca.key", "node-0/node.key", "server/server.key")]
    before = [path.read_bytes() for path in kept]
    (tmp_path / "node-0" / "node.conf").write_text('partition-id=0\ndata-dir="/data"\n')
    write_bundles(tmp_path, Plan(2, ("new.example",)))
    assert [path.read_bytes() for path in kept] == before
    assert "/data" in (tmp_path / "node-0" / "node.conf").read_text()
    assert "new.example:9092" in (tmp_path / "node-0" / "start.sh").read_text()
    assert (tmp_path / "server" / "nodes" / "node-1.pub").is_file()


def started(bundle: Path, scratch: Path, **environment: str) -> list[str]:
    """What a bundle's start.sh gives its program to do."""
    for program in ("python", "flower-superlink"):
        (scratch / program).write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
        (scratch / program).chmod(0o755)
    done = subprocess.run(
        [str(bundle / "start.sh")],
        env={"PATH": "/usr/bin:/bin", **environment, "PIP_FLOWER_BIN": str(scratch)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_scripts_are_valid_shell_and_pass_on_the_settings_of_the_node(
    tmp_path: Path, short_path: Path
) -> None:
    write_bundles(tmp_path, Plan(2, ("127.0.0.1",)))
    for script in tmp_path.glob("*/start.sh"):
        subprocess.run(["sh", "-n", str(script)], check=True)
    said = started(tmp_path / "node-1", short_path)
    assert said[:3] == ["-P", "-m", "pip_flower.deployment.node"]
    assert said[said.index("--superlink") + 1] == "127.0.0.1:9092"
    assert said[said.index("--node-config") + 1].split() == ["partition-id=1"]
    assert said[said.index("--auth-supernode-private-key") + 1] == str(tmp_path / "node-1" / "node.key")


def test_a_script_can_be_asked_whom_it_dials(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("10.0.0.5", "server.example", "fd00::5"):
        assert dialled(start_node(Plan(1, (host,)), 0)) == (host, 9092)
    assert dialled(start_superlink(Plan(1, ("server.example",)))) is None
    monkeypatch.setenv("PIP_FLOWER_SUPERLINK", "[fd00::7]:9099")
    assert dialled(start_node(Plan(1, ("server.example",)), 0)) == ("fd00::7", 9099)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("bundle", ["server", "node-0"])
def test_systemd_understands_the_units(bundle: str, tmp_path: Path) -> None:
    """Without the programs that are on the host only."""
    write_bundles(tmp_path, Plan(1, ("server.example",)))
    unit = tmp_path / bundle / "pip-flower.service"
    text = unit.read_text()
    for program in ("/etc/pip-flower/start.sh", "/opt/pip-flower/bin/pip-flower"):
        text = text.replace(program, "/bin/true")
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_containers_find_each_other_whatever_the_server_is_called(tmp_path: Path, short_path: Path) -> None:
    plan = Plan(2, ("10.0.0.5",))
    write_bundles(tmp_path, plan)
    services = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]
    assert list(services) == ["server", "node-0", "node-1"]
    for name, service in services.items():
        mounted = dict(volume.split(":")[:2] for volume in service["volumes"])
        assert mounted == {f"./{name}": "/etc/pip-flower", name: "/var/lib/pip-flower"}
        home = short_path / name
        said = started(tmp_path / name, short_path, **service["environment"] | {"PIP_FLOWER_HOME": str(home)})
        if name != "server":
            assert said[said.index("--superlink") + 1] == "server:9092"
        # The bundle is mounted for reading only.
        assert home.is_dir()
        assert not (tmp_path / name / "state").exists()
    assert "server" in plan.certified


def test_an_image_gets_all_that_the_package_is_built_from(tmp_path: Path) -> None:
    write_bundles(tmp_path / "lab", Plan(1, ("server.example",)))
    source, project = tmp_path / "source", Path(__file__).resolve().parents[2]
    source.mkdir()
    for line in (tmp_path / "lab" / "Dockerfile").read_text().splitlines():
        words = line.split()
        for name in words[1:-1] if words[0] == "COPY" else []:
            if (project / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(project / name, source / name, ignore=ignored)
            else:
                shutil.copy(project / name, source)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = (source / "dist").iterdir()
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"pip_flower/app/server_app.py", "pip_flower/app/conf/base.yaml", "pip_flower/cli.py"} <= names


@pytest.mark.parametrize("hosts", [("no host",), ("-x",), ("",)])
def test_a_host_that_nobody_can_dial_is_refused(hosts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--server-host"):
        Plan(1, hosts)


def test_init_says_what_to_copy_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["deploy", "init", str(tmp_path / "lab"), "--nodes", "2", "--server-host", "10.0.0.5"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "server/" in said
    assert "to 10.0.0.5" in said
    assert "node-1/" in said
    assert "Nodes dial 10.0.0.5:9092" in said
