"""What the server sends once per task, on the disk of a machine with several clients."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from pip_flower.client.constants import ConstantArrays
from pip_flower.storage.files import locked

DIGESTS = [f"{number:064x}" for number in range(4)]


def arrays(number: int) -> dict[str, np.ndarray]:
    return {"teacher.weight": np.full((500, 500), number, np.float32)}


def test_clients_of_one_machine_may_get_the_same_at_the_same_time(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("forkserver")) as processes:
        jobs = [processes.submit(keep_saving, tmp_path) for _ in range(4)]
        for job in jobs:
            job.result()
    assert ConstantArrays(tmp_path, "run").load(DIGESTS[0]) is not None


def keep_saving(root: Path) -> None:
    store = ConstantArrays(root, "run")
    for _ in range(20):
        store.save(DIGESTS[0], arrays(0))
        # As if the disk had lost it, so that all write while others sweep.
        with locked(store.directory / ".lock"):
            (store.directory / f"{DIGESTS[0]}.arrays").unlink(missing_ok=True)
    store.save(DIGESTS[0], arrays(0))


def test_those_of_two_tasks_are_kept(tmp_path: Path) -> None:
    store = ConstantArrays(tmp_path, "run")
    for number in range(3):
        store.save(DIGESTS[number], arrays(number))
    assert [store.load(digest) is not None for digest in DIGESTS] == [False, True, True, False]


def test_a_damaged_file_is_no_file_and_is_replaced(tmp_path: Path) -> None:
    store = ConstantArrays(tmp_path, "run")
    store.save(DIGESTS[1], arrays(1))
    (path,) = store.directory.glob("*.arrays")
    path.write_bytes(path.read_bytes()[:-7])
    assert store.load(DIGESTS[1]) is None
    store.save(DIGESTS[1], arrays(1))
    kept = store.load(DIGESTS[1])
    assert kept is not None
    assert np.array_equal(kept["teacher.weight"], arrays(1)["teacher.weight"])


def test_what_is_no_digest_names_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        ConstantArrays(tmp_path, "run").load("../../secret")
