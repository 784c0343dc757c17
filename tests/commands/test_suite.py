from pathlib import Path
from typing import Any

from pip_flower.commands.suite import find_cell
from pip_flower.config.compose import Selection
from pip_flower.method.configuration import load_config
from support.killing import serve_here

RunConfig = dict[str, Any]


def test_a_cell_is_found_by_its_configuration_and_a_finished_one_first(
    small_run: RunConfig, tmp_path: Path
) -> None:
    run_config = small_run | {"method": "ncm", "out-dir": str(tmp_path)}
    done, cut_short = serve_here(run_config), serve_here(run_config, run_id=2)
    (cut_short / "model.safetensors").unlink()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "environment.json").write_text("[]")

    def cell(**changes: Any) -> Path | None:
        found = find_cell(tmp_path, load_config(Selection.from_run_config(run_config | changes)))
        return found.path if found else None

    assert cell() == done
    (done / "model.safetensors").unlink()
    assert cell() == cut_short
    # What may change between machines and has no effect on results does not matter.
    assert cell(overrides=f"{small_run['overrides']} federation.wait_seconds=9") == cut_short
    assert cell(seed=8) is None
    assert cell(method="ranpac") is None
    assert cell(overrides=f"{small_run['overrides']} schedule.rounds=3") is None
