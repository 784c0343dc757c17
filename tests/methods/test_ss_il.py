"""SS-IL: whose gradient reaches which rows, and what a batch is made of."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pip_flower.data.samples import Samples
from pip_flower.methods.rehearsal.method import Material
from pip_flower.methods.ss_il import SSIL, separated_cross_entropy
from support.networks import full, job_of, step_of
from support.runs import strategy_for

RunConfig = dict[str, Any]
REHEARSED = np.array([False, True, False])


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def ssil(small_run: RunConfig, overrides: str = "") -> SSIL:
    method = strategy_for(full(small_run, "ss-il", overrides)).method
    assert isinstance(method, SSIL)
    return method


def test_a_new_sample_gives_no_gradient_to_old_classes_nor_an_exemplar_to_new_ones() -> None:
    logits = drawn(3, 5).requires_grad_()
    separated_cross_entropy(logits, torch.tensor([4, 1, 3]), 3, REHEARSED).backward()
    assert logits.grad is not None
    assert not logits.grad[[0, 2], :3].any()
    assert not logits.grad[1, 3:].any()
    assert logits.grad[[0, 2], 3:].abs().min() > 0
    assert logits.grad[1, :3].abs().min() > 0


def test_the_sum_of_both_softmaxes_is_divided_by_the_batch() -> None:
    logits = drawn(3, 5)
    new = F.cross_entropy(logits[[0, 2], 3:], torch.tensor([1, 0]), reduction="sum")
    old = F.cross_entropy(logits[1:2, :3], torch.tensor([1]), reduction="sum")
    found = separated_cross_entropy(logits, torch.tensor([4, 1, 3]), 3, REHEARSED)
    torch.testing.assert_close(found, (new + old) / 3)


def test_without_exemplars_their_term_is_left_out() -> None:
    logits = drawn(3, 5)
    found = separated_cross_entropy(logits, torch.tensor([4, 4, 3]), 3, np.zeros(3, dtype=np.bool_))
    torch.testing.assert_close(found, F.cross_entropy(logits[:, 3:], torch.tensor([1, 1, 0])))


def test_a_teacher_like_the_student_adds_no_gradient(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, step = ssil(small_run), step_of([2, 3])
    own = step.logits([0]).detach()
    monkeypatch.setattr(method.teacher, "logits", lambda images, tasks: own)
    row = step.rows["head.0.weight"].requires_grad_()
    (gradient,) = torch.autograd.grad(method.loss(step, job_of(1)), row)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)


def test_every_batch_has_its_share_of_exemplars(small_run: RunConfig) -> None:
    method = ssil(small_run, "training.batch_size=8")
    epoch = method.epoch(Material(blank(20), blank(3)))
    assert epoch is not None
    found = list(epoch(np.random.default_rng(1)))
    assert [(int((rows < 20).sum()), int((rows >= 20).sum())) for rows in found] == [(8, 2), (8, 2), (4, 2)]
    assert sorted(int(row) for rows in found for row in rows if row < 20) == list(range(20))
    assert method.epoch(Material(blank(20), blank(0))) is None


def blank(count: int) -> Samples:
    return Samples(np.zeros((count, 8, 8, 3), np.uint8), np.zeros(count, np.int64), np.arange(count))
