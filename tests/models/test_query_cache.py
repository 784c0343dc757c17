"""The disk cache of queries: shared, checked, and never a reason for a run to fail."""

import logging
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from pip_flower.models.query_cache import QueryCache, image_key

DIM = 6


def key(number: int) -> bytes:
    return image_key(np.full((2, 2, 3), number, dtype=np.uint8))


def query(number: int) -> np.ndarray:
    return np.arange(DIM, dtype=np.float32) + number


def filled(directory: Path, numbers: range, namespace: str = "a") -> QueryCache:
    cache = QueryCache(directory, namespace, DIM)
    cache.add({key(number): query(number) for number in numbers})
    return cache


def test_another_process_reads_what_one_stored(tmp_path: Path) -> None:
    filled(tmp_path, range(5))
    later = QueryCache(tmp_path, "a", DIM)
    assert later.missing([key(3), key(9), key(0), key(9)]) == [1]
    assert np.array_equal(later.read([key(3), key(0)]), [query(3), query(0)])


def test_what_is_appended_later_is_seen_without_reopening(tmp_path: Path) -> None:
    first = filled(tmp_path, range(2))
    filled(tmp_path, range(2, 4))
    assert first.missing([key(number) for number in range(4)]) == []
    assert np.array_equal(first.read([key(3)]), [query(3)])


def test_namespaces_do_not_mix(tmp_path: Path) -> None:
    filled(tmp_path, range(2), "weights 1")
    assert QueryCache(tmp_path, "weights 2", DIM).missing([key(0)]) == [0]


def test_the_key_depends_on_pixels_and_shape() -> None:
    flat = np.zeros((2, 2, 3), dtype=np.uint8)
    other = flat.copy()
    other[0, 0, 0] = 1
    assert len({image_key(flat), image_key(other), image_key(flat.reshape(1, 4, 3))}) == 3


@pytest.mark.parametrize("where", ["key", "query", "sum"])
def test_a_damaged_record_is_detected_and_replaced(tmp_path: Path, where: str) -> None:
    cache = filled(tmp_path, range(3))
    size = 16 + 4 * DIM + 8
    offset = 32 + size + {"key": 3, "query": 20, "sum": size - 1}[where]
    data = bytearray(cache.path.read_bytes())
    data[offset] ^= 0xFF
    cache.path.write_bytes(data)
    later = QueryCache(tmp_path, "a", DIM)
    assert later.missing([key(0), key(1), key(2)]) == [1]
    later.add({key(1): query(1)})
    fresh = QueryCache(tmp_path, "a", DIM)
    assert fresh.missing([key(0), key(1)]) == []
    assert np.array_equal(fresh.read([key(0), key(1)]), [query(0), query(1)])


def test_a_torn_last_record_is_overwritten(tmp_path: Path) -> None:
    cache = filled(tmp_path, range(3))
    cache.path.write_bytes(cache.path.read_bytes()[:-5])
    later = QueryCache(tmp_path, "a", DIM)
    assert later.missing([key(1), key(2)]) == [1]
    later.add({key(2): query(2), key(7): query(7)})
    fresh = QueryCache(tmp_path, "a", DIM)
    assert fresh.missing([key(0), key(1), key(2), key(7)]) == []
    assert np.array_equal(fresh.read([key(7)]), [query(7)])


@pytest.mark.parametrize("content", [b"", b"something else entirely, longer than a header is"])
def test_a_foreign_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = QueryCache(tmp_path, "a", DIM).path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    cache = QueryCache(tmp_path, "a", DIM)
    assert cache.missing([key(1)]) == [0]
    cache.add({key(1): query(1)})
    assert QueryCache(tmp_path, "a", DIM).missing([key(1)]) == []


def test_an_unusable_directory_means_memory_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "queries").write_text("a file where a directory should be")
    cache = QueryCache(tmp_path, "a", DIM)
    with caplog.at_level(logging.WARNING):
        cache.add({key(1): query(1)})
        cache.add({key(2): query(2)})
    assert cache.missing([key(1), key(2), key(3)]) == [2]
    assert np.array_equal(cache.read([key(2), key(1)]), [query(2), query(1)])
    assert len(caplog.records) == 1
    assert "kept in memory only" in caplog.text


def test_a_full_disk_means_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = filled(tmp_path, range(2))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    cache.add({key(5): query(5)})
    assert np.array_equal(cache.read([key(5), key(1)]), [query(5), query(1)])


def _fill_many(directory: Path, start: int) -> None:
    for number in range(start, start + 40, 4):
        filled(directory, range(number, number + 8))


def test_processes_may_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_fill_many, args=(tmp_path, start)) for start in (0, 10, 20, 30)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    cache = QueryCache(tmp_path, "a", DIM)
    keys = [key(number) for number in range(70)]
    assert cache.missing(keys) == []
    assert np.array_equal(cache.read(keys), [query(number) for number in range(70)])
