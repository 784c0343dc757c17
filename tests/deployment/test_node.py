import subprocess
import sys
import time
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])


def test_messages_are_run_by_forks_that_end_with_their_owner(tmp_path: Path, short_path: Path) -> None:
    """With a stand-in for Flower's program that writes down its arguments and its process."""
    script = (
        "import os, subprocess, sys, time\n"
        "from pip_flower.deployment.prefork import start_forking\n"
        "def main():\n"
        f"    with open({str(tmp_path / 'said')!r}, 'a') as out:\n"
        "        print(os.getpid(), *sys.argv, file=out)\n"
        "start_forking(main)\n"
        "for word in ('one', 'two'):\n"
        "    subprocess.run(['flwr-clientapp', '--token', word], check=True)\n"
        f"while len(open({str(tmp_path / 'said')!r}).readlines()) < 2:\n"
        "    time.sleep(0.05)\n"
        "print(os.environ['PATH'].split(':')[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "TMPDIR": str(short_path),
            "PATH": "/bin",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in (tmp_path / "said").read_text().splitlines()]
    assert [line[1:] for line in sorted(lines, key=lambda line: line[3])] == [
        ["flwr-clientapp", "--token", "one"],
        ["flwr-clientapp", "--token", "two"],
    ]
    assert lines[0][0] != lines[1][0]
    programs = Path(done.stdout.strip())
    deadline = time.monotonic() + 300
    while programs.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not programs.exists()
