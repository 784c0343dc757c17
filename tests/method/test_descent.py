import pytest
import torch

from pip_flower.method.descent import descend


def test_each_loss_is_that_after_the_step_before_even_from_a_list() -> None:
    weight = torch.tensor([4.0], requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.25)
    # d/dw w^2 = 2 w, so each step halves the weight: 4, 2, 1.
    mean = descend([1.0, 1.0, 1.0], lambda scale: scale * weight.square().sum(), [weight], optimizer, 1e9)
    assert mean == pytest.approx((16 + 4 + 1) / 3)
    assert weight.item() == pytest.approx(0.5)


def test_long_gradients_are_cut() -> None:
    weight = torch.tensor([4.0], requires_grad=True)
    descend([1.0], lambda _: weight.square().sum(), [weight], torch.optim.SGD([weight], lr=1.0), 0.5)
    assert weight.item() == pytest.approx(3.5, rel=1e-5)
