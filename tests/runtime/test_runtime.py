import subprocess
import sys

import numpy as np
import pytest
import torch

from pip_flower.config.schema import ConfigError
from pip_flower.runtime.devices import pick_device
from pip_flower.runtime.process import once_per_process
from pip_flower.runtime.streams import stream, torch_stream
from support.toy import runtime


def test_streams_are_reproducible_and_independent() -> None:
    assert np.array_equal(stream(1, "a", 2).random(5), stream(1, "a", 2).random(5))
    drawn = [stream(*names).random() for names in ((1, "a", 2), (1, "a", 3), (1, "b", 2), (2, "a", 2))]
    assert len(set(drawn)) == 4
    # "a", 12 and "a1", 2 must not meet.
    assert stream(1, "a", 12).random() != stream(1, "a1", 2).random()
    assert torch.equal(
        torch.rand(3, generator=torch_stream(1, "x")), torch.rand(3, generator=torch_stream(1, "x"))
    )


def test_things_are_made_once() -> None:
    made: list[int] = []
    for _ in range(3):
        once_per_process("test-key", lambda: made.append(1))
    assert made == [1]


@pytest.mark.parametrize("name", ["warp", "cuda"])
def test_devices_that_are_not_there_are_refused(name: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="runtime.device"):
        pick_device(runtime(device=name))


def test_torchvision_imports_beside_this_torch() -> None:
    script = "import pip_flower.runtime.torchvision_compat, torchvision.transforms.v2, timm; print('fine')"
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", script], capture_output=True, text=True
    )
    assert done.stdout == "fine\n", done.stderr
