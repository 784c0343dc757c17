"""Losses against a teacher."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pip_flower.methods.rehearsal.distillation import (
    feature_cosine,
    pooled_distance,
    sigmoid_distillation,
    sigmoid_targets,
    softened,
    taskwise,
)
from pip_flower.models.stages import pooled

seeds = st.integers(0, 10_000)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(loss, of)[0]


def test_softened_by_hand() -> None:
    # At T = 2 the teacher says (0.75, 0.25) and the student (0.5, 0.5), then (0.8, 0.2).
    teacher = torch.tensor([[2 * math.log(3), 0.0], [2 * math.log(3), 0.0]])
    student = torch.tensor([[1.0, 1.0], [2 * math.log(4), 0.0]])
    expected = (math.log(2) + 0.75 * math.log(1.25) + 0.25 * math.log(5)) / 2
    assert float(softened(student, teacher, 2)) == pytest.approx(expected)
    assert float(softened(student, teacher, 2, squared=True)) == pytest.approx(4 * expected)


@given(temperature=st.floats(0.5, 5), seed=seeds)
@settings(deadline=None)
def test_a_student_like_its_teacher_is_left_alone(temperature: float, seed: int) -> None:
    teacher = drawn(4, 6, seed=seed)
    same = teacher.clone().requires_grad_()
    torch.testing.assert_close(
        gradient(softened(same, teacher, temperature), same), torch.zeros(4, 6), atol=1e-6, rtol=0
    )
    other = (teacher + drawn(4, 6, seed=seed + 1)).requires_grad_()
    assert softened(other, teacher, temperature) > softened(same, teacher, temperature)
    # Softmax does not see a constant added to all logits.
    torch.testing.assert_close(
        softened(other + 3, teacher - 2, temperature), softened(other, teacher, temperature)
    )


def test_softened_pulls_towards_the_teacher() -> None:
    teacher, student = drawn(3, 4), drawn(3, 4, seed=1).requires_grad_()
    found = gradient(softened(student, teacher, 2), student)
    expected = ((student / 2).softmax(dim=1) - (teacher / 2).softmax(dim=1)) / 2 / 3
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("squared", [True, False])
def test_taskwise_is_a_sum_over_the_old_tasks(squared: bool) -> None:
    logits, teacher = drawn(5, 9), drawn(5, 6, seed=1)
    expected = (
        softened(logits[:, :1], teacher[:, :1], 2, squared)
        + softened(logits[:, 1:4], teacher[:, 1:4], 2, squared)
        + softened(logits[:, 4:6], teacher[:, 4:6], 2, squared)
    )
    torch.testing.assert_close(taskwise(logits, teacher, (1, 3, 2), 2, squared), expected)


def test_taskwise_is_squared_unless_told_and_knows_nothing_of_other_tasks() -> None:
    logits, teacher = drawn(5, 6).requires_grad_(), drawn(5, 4, seed=1)
    loss = taskwise(logits, teacher, (2, 2), 2)
    torch.testing.assert_close(loss, 4 * taskwise(logits, teacher, (2, 2), 2, squared=False))
    assert torch.equal(gradient(loss, logits)[:, 4:], torch.zeros(5, 2))
    # A task as a whole may rise or fall.
    lifted = logits + torch.tensor([5.0, 5, 0, 0, 0, 0])
    torch.testing.assert_close(taskwise(lifted, teacher, (2, 2), 2), loss)
    assert not torch.isclose(softened(lifted[:, :4], teacher, 2), softened(logits[:, :4], teacher, 2))


def test_without_old_tasks_there_is_nothing_to_distil() -> None:
    assert float(taskwise(drawn(3, 4), torch.zeros(3, 0), (), 2)) == 0


def test_targets_of_old_classes_are_the_teachers() -> None:
    labels = torch.tensor([[0.0, 0, 1], [1, 0, 0]])
    targets = sigmoid_targets(labels, torch.tensor([[0.0, math.log(3)], [-math.log(3), 0.0]]))
    # The exemplar's own label is overwritten, the new class's is not.
    torch.testing.assert_close(targets, torch.tensor([[0.5, 0.75, 1], [0.25, 0.5, 0]]))
    assert labels.tolist() == [[0, 0, 1], [1, 0, 0]]


@given(old=st.integers(0, 5), seed=seeds)
@settings(deadline=None)
def test_sigmoid_distillation_is_icarls_loss_to_the_bit(old: int, seed: int) -> None:
    logits, taught = drawn(7, 6, seed=seed), drawn(7, old, seed=seed + 1)
    positions = torch.randint(6, (7,), generator=torch.Generator().manual_seed(seed))
    targets = F.one_hot(positions, 6).float()
    if old:
        targets[:, :old] = torch.sigmoid(taught)
    expected = F.binary_cross_entropy_with_logits(logits, targets)
    assert torch.equal(sigmoid_distillation(logits, positions, taught if old else None), expected)


def test_sigmoid_distillation_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3)]])
    position = torch.tensor([1])
    alone = (math.log(2) - math.log(0.75)) / 2
    assert float(sigmoid_distillation(logits, position, None)) == pytest.approx(alone)
    taught = (-(0.25 * math.log(0.5) + 0.75 * math.log(0.5)) - math.log(0.75)) / 2
    teacher = torch.tensor([[-math.log(3)]])
    assert float(sigmoid_distillation(logits, position, teacher)) == pytest.approx(taught)


def test_a_student_like_its_teacher_has_no_gradient_on_old_classes() -> None:
    logits = drawn(4, 5).requires_grad_()
    positions = torch.tensor([0, 3, 4, 1])
    found = gradient(sigmoid_distillation(logits, positions, logits.detach()[:, :3]), logits)
    torch.testing.assert_close(found[:, :3], torch.zeros(4, 3), atol=1e-7, rtol=0)
    assert (found[:, 3:] != 0).all()


def test_feature_cosine_by_hand() -> None:
    features = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]])
    teacher = torch.tensor([[5.0, 0.0], [1.0, 0.0], [0.0, -1.0]])
    assert float(feature_cosine(features, teacher)) == pytest.approx((0 + (1 - 0.5**0.5) + 2) / 3)


def test_pooled_distance_by_hand() -> None:
    # (1, 0, 1, 0) / sqrt 2 and (0, 1, 0, 1) / sqrt 2 in the first stage, the same in the second.
    corner, opposite = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)
    corner[..., 0, 0] = 2.0
    opposite[..., 1, 1] = -7.0
    second = drawn(1, 3, 2, 2)
    found = pooled_distance([corner, second], [opposite, second])
    assert float(found) == pytest.approx(2**0.5 / 2)


def test_pooled_distance_is_a_mean_over_samples_and_stages() -> None:
    maps = [drawn(4, 2, 6, 6), drawn(4, 3, 3, 3, seed=1)]
    taught = [drawn(4, 2, 6, 6, seed=2), drawn(4, 3, 3, 3, seed=3)]
    distances = [
        float((pooled(own[row : row + 1]) - pooled(other[row : row + 1])).square().sum().sqrt())
        for own, other in zip(maps, taught, strict=True)
        for row in range(4)
    ]
    assert float(pooled_distance(maps, taught)) == pytest.approx(sum(distances) / 8)


def test_equal_maps_are_no_distance_apart_and_have_no_gradient() -> None:
    own = drawn(2, 3, 4, 4).requires_grad_()
    features = drawn(2, 5).requires_grad_()
    same = pooled_distance([own], [own.detach()])
    assert same.item() == 0
    assert torch.equal(gradient(same, own), torch.zeros(2, 3, 4, 4))
    assert pooled_distance([own * 10], [own.detach()]).item() == pytest.approx(0, abs=1e-6)
    cosine = feature_cosine(features, features.detach())
    assert cosine.item() == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(gradient(cosine, features), torch.zeros(2, 5), atol=1e-6, rtol=0)
