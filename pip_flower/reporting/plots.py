"""Pictures of results; drawn off screen."""

from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pip_flower.reporting.results import RunResult, by_method
from pip_flower.storage.files import write_bytes

_MARKERS = "osD^vP*X"


def plot_accuracy(results: list[RunResult], path: Path) -> None:
    """Accuracy over all classes seen, after each task; a line per method, a band over its seeds."""
    figure = Figure(figsize=(7, 4.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, (method, runs) in enumerate(by_method(results).items()):
        curves = np.array([run.matrix.after_task() for run in runs])
        tasks = np.arange(1, curves.shape[1] + 1)
        mean = curves.mean(axis=0)
        label = f"{method} (Avg {curves.mean():.1f} %)"
        (line,) = axes.plot(tasks, mean, marker=_MARKERS[index % len(_MARKERS)], label=label)
        if len(runs) > 1:
            low, high = curves.min(axis=0), curves.max(axis=0)
            axes.fill_between(tasks, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    seeds = sorted({run.seed for run in results})
    axes.set_title(f"{results[0].experiment}, seed {', '.join(map(str, seeds))}")
    axes.set_xlabel("tasks learnt")
    axes.set_ylabel("accuracy on all classes seen (%)")
    axes.set_ylim(0, 101)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left")
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    write_bytes(path, buffer.getvalue())
