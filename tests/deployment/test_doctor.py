import socket
import ssl
import threading
from pathlib import Path

import pytest
import torch

from pip_flower.cli import main
from pip_flower.deployment.bundles import write_bundles
from pip_flower.deployment.doctor import reach
from pip_flower.deployment.plan import Plan

OWN_DATA = ["--dataset", "npz", "--overrides", "dataset.classes=10 backbone.name=embedded"]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    write_bundles(tmp_path, Plan(1, ("127.0.0.1",)))
    return tmp_path


def serve_once(lab: Path) -> int:
    """A TLS server with the certificate of `lab` that greets one caller."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(lab / "server" / "server.pem", lab / "server" / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        with listener:
            connection, _ = listener.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    threading.Thread(target=greet, daemon=True).start()
    return int(listener.getsockname()[1])


def test_a_healthy_installation_is_found_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for what in (
        "flwr: 1.39.0",
        "device: ",
        "digest ",
        "1433 training",
        "GB free",
        "clock: ",
        "nothing is wrong",
    ):
        assert what in said


def test_what_is_wrong_comes_with_a_remedy(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lab / "node-0" / "node.key").chmod(0o644)
    missing = "/nowhere/images.npz"
    command = ["doctor", "--bundle", str(lab / "node-0"), *OWN_DATA, "--data-dir", missing]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert f"chmod 600 {lab / 'node-0' / 'node.key'}" in said
    assert "wrong    data: " in said
    assert missing in said
    assert "Is the SuperLink running, its port open, the name right?" in said
    assert "3 to fix" in said


def test_a_node_is_looked_at_with_its_own_settings(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = lab / "node-0" / "node.conf"
    settings.write_text('partition-id=0\ndata-dir="/nowhere/images.npz"\n')
    command = ["doctor", "--bundle", str(lab / "node-0"), *OWN_DATA]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert "/nowhere/images.npz" in said
    assert str(lab / "node-0" / "state" / "clients") in said.replace("\n", "")
    settings.write_text("partition-id=0\nplace=1\n")
    assert main(command) == 2
    assert "node-config place: is not known" in capsys.readouterr().err
    settings.write_text("data-dir=/nowhere\n")
    assert main(command) == 2
    assert 'Write key=1 or key="text" lines' in capsys.readouterr().err


def test_one_fault_is_found_once(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["doctor", "--overrides", "runtime.device=cuda"]) == 1
    assert "1 to fix" in capsys.readouterr().out


def test_the_superlink_is_dialled_as_a_node_would(
    lab: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert reach("127.0.0.1", serve_once(lab), lab / "node-0" / "ca.crt").state == "ok"
    other = tmp_path_factory.mktemp("other")
    write_bundles(other, Plan(1, ("127.0.0.1",)))
    stranger = reach("127.0.0.1", serve_once(lab), other / "node-0" / "ca.crt")
    assert stranger.state == "wrong"
    assert "Use ca.crt of this deployment" in stranger.remedy
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    assert reach("127.0.0.1", closed, None).state == "wrong"
