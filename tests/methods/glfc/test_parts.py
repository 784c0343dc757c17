"""The weights of samples, the encoder and its rule of labels, the entropy, the spread of features."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pip_flower.methods.glfc.changes import mean_entropy
from pip_flower.methods.glfc.compensation import balanced, own_gradients, weighted_sigmoid_loss
from pip_flower.methods.glfc.encoder import GradientEncoder
from pip_flower.methods.glfc.lga import radius, spread

CPU = torch.device("cpu")


def encoder(size: int = 16, classes: int = 10) -> GradientEncoder:
    return GradientEncoder(size, classes, torch.Generator().manual_seed(3), CPU)


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(0, 3)), min_size=1, max_size=20))
def test_the_weights_of_every_group_average_one(pairs: list[tuple[float, int]]) -> None:
    sizes, groups = torch.tensor([size for size, _ in pairs]), torch.tensor([group for _, group in pairs])
    weights = balanced(sizes, groups)
    for group in groups.unique():
        assert float(weights[groups == group].mean()) == pytest.approx(1.0, rel=1e-5)


def test_samples_that_are_learnt_to_the_bit_have_finite_weights() -> None:
    assert balanced(torch.zeros(3), torch.zeros(3)).isfinite().all()


def test_a_samples_own_gradient_is_that_of_its_sigmoid() -> None:
    logits = torch.tensor([[0.0, 9.0], [9.0, 2.0]], requires_grad=True)
    found = own_gradients(logits, torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx([0.5, 1 - 1 / (1 + np.exp(-2.0))])
    assert not found.requires_grad


def test_weights_of_one_give_plain_sigmoid_cross_entropy() -> None:
    logits, targets = torch.randn(4, 3), torch.rand(4, 3)
    plain = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    assert torch.allclose(weighted_sigmoid_loss(logits, targets, torch.ones(4)), plain)


def test_the_encoder_is_as_large_as_the_papers_and_the_same_everywhere() -> None:
    assert encoder(32, 100).width == 85_036
    one, other = encoder(), encoder()
    pairs = zip(one.network.parameters(), other.network.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert max(float(p.detach().abs().max()) for p in one.network.parameters()) <= 0.5


@pytest.mark.parametrize("size", [8, 15, 32])
@pytest.mark.parametrize("label", range(0, 120, 17))
def test_the_gradient_tells_the_label(size: int, label: int) -> None:
    network = encoder(size, 120)
    image = torch.rand(3, size, size, generator=torch.Generator().manual_seed(label))
    assert network.label_of(network.gradient(image, label)) == label


def test_rebuilding_comes_nearer_to_the_gradient_and_is_repeatable() -> None:
    network = encoder()
    target = network.gradient(torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(1)), 4)

    def rebuilt(steps: int) -> torch.Tensor:
        return network.rebuilt(target, steps, 5, 2, torch.Generator().manual_seed(2))

    def distance(image: torch.Tensor) -> float:
        return float((network.gradient(image, 4) - target).norm())

    assert rebuilt(20).shape == (2, 3, 16, 16)
    assert distance(rebuilt(20)[-1]) < 0.5 * distance(rebuilt(1)[-1])
    assert torch.equal(rebuilt(3), rebuilt(3))


def test_entropy_is_largest_where_nothing_is_known() -> None:
    assert float(mean_entropy(torch.zeros(3, 10))) == pytest.approx(np.log(10))
    assert float(mean_entropy(torch.tensor([[1000.0, 0.0]]))) == 0.0


def test_the_spread_is_the_mean_variance_of_a_classs_features() -> None:
    features = torch.tensor([[0.0, 0.0], [2.0, 4.0], [5.0, 5.0]])
    found = spread(features, np.array([1, 1, 2]))
    # Variances 2 and 8 in class 1; class 2 has a single sample.
    assert found["spread.sum"].tolist() == [5.0]
    assert found["spread.count"].tolist() == [1.0]
    assert radius(found) == pytest.approx(np.sqrt(5.0))
    assert radius(spread(features[:1], np.array([1]))) == 0.0
