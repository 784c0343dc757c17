import subprocess
import sys
from pathlib import Path

from pip_flower.flower.log import FlowerLog


def test_a_log_moves_while_it_is_written(tmp_path: Path) -> None:
    told: list[str] = []
    log = FlowerLog.draft(tmp_path / "runs", told.append)
    script = "import sys; print('one', flush=True); sys.stdin.readline(); print('two', flush=True)"
    with log.path.open("ab") as file:
        writer = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=file)
    while "one\n" not in log.text():
        pass
    log.tell_news()
    run = tmp_path / "runs" / "digits-1"
    run.mkdir()
    log.move(run / "flower.log")
    writer.communicate(b"\n")
    log.tell_news()
    assert told == ["one\n", "two\n"]
    assert (run / "flower.log").read_text() == "one\ntwo\n"
    assert list((tmp_path / "runs").iterdir()) == [run]


def test_a_resumed_run_goes_on_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "flower.log"
    path.write_text("Successfully started run 1\n")
    log = FlowerLog(path)
    with path.open("a") as file:
        file.write("Successfully started run 2\n")
    assert log.text() == "Successfully started run 2\n"
