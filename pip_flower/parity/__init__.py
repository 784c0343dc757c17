"""Numbers of the authors' released code against ours, from fixture files.

Everything that is compared comes out of the code that runs use: structures, trainer, prototypes,
averages. Nothing here computes a result of its own.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from pip_flower.parity.client_round import CLIENT_ROUND, check_client_round
from pip_flower.parity.deviation import Deviation
from pip_flower.parity.federation import (
    check_averages,
    check_epochs,
    check_global_prototypes,
    check_prototypes,
)
from pip_flower.parity.fixtures import Fixture
from pip_flower.parity.forward import check_forward
from pip_flower.parity.reference import load_toy

__all__ = ["Deviation", "check_all", "parity_table"]


def check_all(directory: Path) -> list[Deviation]:
    """Every array of every fixture file in `directory`."""
    dualprompt = Fixture(directory, "dualprompt_forward.npz")
    mask = dualprompt["class_mask"]
    # The toy ViT's files do not say how many heads it has; prompts are stored by head.
    backbone = load_toy(directory, heads=dualprompt["param.g_prompt"].shape[3])
    # The authors' code was not recorded over a whole round; a second implementation is.
    whole_round = [Fixture(directory, CLIENT_ROUND)] if (directory / CLIENT_ROUND).is_file() else []
    return [
        *check_forward(dualprompt, backbone),
        *check_forward(Fixture(directory, "l2p_forward.npz"), backbone),
        *check_prototypes(Fixture(directory, "prototype.npz"), backbone, mask),
        *check_global_prototypes(Fixture(directory, "fed_weighted_avg_prototype.npz")),
        *check_averages(Fixture(directory, "fed_weighted_avg.npz")),
        *check_epochs(Fixture(directory, "local_epoch.npz"), backbone, mask),
        *(found for fixture in whole_round for found in check_client_round(fixture, backbone, mask)),
    ]


def parity_table(deviations: Sequence[Deviation]) -> Table:
    """One row per array."""
    table = Table(title="Largest deviation from the released code")
    for title in ("file", "array"):
        table.add_column(title, overflow="fold")
    for title in ("deviation", "tolerance", ""):
        table.add_column(title, justify="right")
    for found in deviations:
        verdict = "ok" if found.ok else "[bold red]FAR[/]"
        row = (found.file, found.array, f"{found.largest:.1e}", f"{found.tolerance:.0e}", verdict)
        table.add_row(*row)
    return table
