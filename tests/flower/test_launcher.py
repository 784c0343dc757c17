import subprocess
import sys
import zipfile
from pathlib import Path

from pip_flower.flower.launcher import Simulation, app_directory

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_is_the_app_itself(tmp_path: Path) -> None:
    assert app_directory(tmp_path) == ROOT


def test_an_installed_wheel_carries_the_whole_app(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
        "from pip_flower.config.files import conf_directory; "
        "from pip_flower.flower.launcher import app_directory; "
        "print(conf_directory()); print(app_directory(Path(sys.argv[2])))"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(installed), str(scratch)], capture_output=True, text=True
    )
    assert done.stdout.split() == [str(installed / "pip_flower/app/conf"), str(scratch / "app")], done.stderr
    for name in (
        "server_app.py",
        "conf/base.yaml",
        "pip_flower/client/numpy_client.py",
        "pip_flower/models/embedded_vit.json",
    ):
        assert (scratch / "app" / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_federation_is_sized_by_the_configuration() -> None:
    options = Simulation(30, 1, 0.25).as_options()
    assert "num-supernodes=30" in options
    assert "client-resources-num-gpus=0.25" in options
