"""Heads that compare directions, and the correction of their bias."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.models.heads import BiasCorrection, CosineHead, Head, ProxyHead, State

WIDTH = 8
DIRECTIONS = [CosineHead(WIDTH), ProxyHead(WIDTH, proxies=3)]
heads = pytest.mark.parametrize("head", DIRECTIONS, ids=["cosine", "proxies"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def started(head: Head, sizes: tuple[int, ...] = (2, 3)) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for task, classes in enumerate(sizes):
        state |= head.start_task(task, classes, generator(task))
    return state


def features(count: int = 5, seed: int = 9) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=generator(seed))


@heads
def test_names_are_what_a_task_starts_with_and_the_scale_is_there_once(head: Head) -> None:
    state = started(head)
    assert head.names_of(range(2)) == tuple(state)
    assert head.names_of(range(2)).count("head.scale") == 1
    assert "head.scale" in head.names(0)
    assert state["head.scale"].tolist() == [1.0]


@heads
def test_a_start_is_bounded_and_decided_by_the_generator(head: Head) -> None:
    first, again, other = (head.start_task(1, 50, generator(seed)) for seed in (3, 3, 4))
    (name,) = first
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    bound = WIDTH**-0.5
    assert 0.9 * bound < first[name].max() <= bound
    assert -bound <= first[name].min() < -0.9 * bound


@pytest.mark.parametrize("make", [CosineHead, ProxyHead])
def test_the_scale_starts_where_it_is_told_and_multiplies(make: Callable[..., Head]) -> None:
    head = make(WIDTH, prefix="classes", scale=4.0)
    state = started(head)
    assert state["classes.scale"].tolist() == [4.0]
    unscaled = state | {"classes.scale": torch.ones(1)}
    logits = head.logits(state, features(), range(2))
    assert torch.equal(logits, 4 * head.logits(unscaled, features(), range(2)))


@heads
@pytest.mark.parametrize("factor", [0.01, 7.0, 1000.0])
def test_the_length_of_features_does_not_matter(head: Head, factor: float) -> None:
    state = started(head)
    torch.testing.assert_close(
        head.logits(state, features() * factor, range(2)), head.logits(state, features(), range(2))
    )


@heads
def test_columns_come_in_the_order_of_the_tasks_asked_for(head: Head) -> None:
    state = started(head)
    both = head.logits(state, features(), [0, 1])
    assert both.shape == (5, 5)
    torch.testing.assert_close(head.logits(state, features(), [1, 0]), both[:, [2, 3, 4, 0, 1]])
    torch.testing.assert_close(head.logits(state, features(), [1]), both[:, 2:])


def test_cosines_by_hand() -> None:
    head = CosineHead(2)
    state: State = {
        "head.0.weight": torch.tensor([[2.0, 0.0], [-3.0, 0.0], [1.0, 1.0]]),
        "head.scale": torch.tensor([10.0]),
    }
    logits = head.logits(state, torch.tensor([[5.0, 0.0], [0.0, 0.1]]), [0])
    torch.testing.assert_close(logits, torch.tensor([[10, -10, 50**0.5], [0, 0, 50**0.5]]))


def test_similarities_by_hand() -> None:
    head = ProxyHead(2, proxies=2)
    proxies = torch.tensor([[[3.0, 0.0], [0.0, 2.0]], [[-1.0, 0.0], [-1.0, 0.0]]])
    state: State = {"head.0.proxies": proxies, "head.scale": torch.tensor([3.0])}
    sample = torch.tensor([[2.0, 0.0]])
    # Cosines (1, 0) and (-1, -1); e / (e + 1) of the first proxy's 1.
    expected = torch.tensor([[0.7310586, -1.0]])
    torch.testing.assert_close(head.similarities(state, sample, [0]), expected)
    torch.testing.assert_close(head.logits(state, sample, [0]), 3 * expected)


def test_one_proxy_a_class_is_the_cosine_head() -> None:
    cosine, proxies = CosineHead(WIDTH), ProxyHead(WIDTH, proxies=1)
    state = started(cosine)
    for task in range(2):
        state[f"head.{task}.proxies"] = state[f"head.{task}.weight"][:, None]
    expected = cosine.logits(state, features(), range(2))
    torch.testing.assert_close(proxies.logits(state, features(), range(2)), expected)


def test_imprinted_proxies_are_the_centres_of_a_class() -> None:
    head = ProxyHead(3, proxies=2)
    around = torch.eye(3).repeat_interleave(40, dim=0) + 0.01 * torch.randn(120, 3, generator=generator())
    lengths = torch.rand(120, 1, generator=generator()) + 0.5
    samples = around * lengths
    imprinted = head.imprint(4, [samples[:80], samples[40:]], generator())
    assert list(imprinted) == ["head.4.proxies"]
    found = imprinted["head.4.proxies"]
    assert found.shape == (2, 2, 3)
    torch.testing.assert_close(found.norm(dim=2), torch.ones(2, 2))
    axes = torch.tensor([[0, 1], [1, 2]])
    for centres, expected in zip(found, axes, strict=True):
        torch.testing.assert_close(
            centres[centres.argmax(dim=1).argsort()], torch.eye(3)[expected], atol=0.01, rtol=0
        )


def test_imprinting_is_decided_by_the_generator() -> None:
    head = ProxyHead(WIDTH, proxies=4)
    samples = [features(100, 1), features(100, 2)]
    first, again, other = (head.imprint(0, samples, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first["head.0.proxies"], again["head.0.proxies"])
    assert not torch.equal(first["head.0.proxies"], other["head.0.proxies"])


def test_imprinting_ignores_the_length_of_features() -> None:
    head = ProxyHead(WIDTH, proxies=4)
    # Powers of two, which cancel to the bit.
    lengths = 2.0 ** torch.randint(-3, 6, (100, 1), generator=generator())
    plain, stretched = (head.imprint(0, [f], generator()) for f in (features(100), features(100) * lengths))
    assert torch.equal(plain["head.0.proxies"], stretched["head.0.proxies"])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_class_with_few_samples_gets_different_proxies_beside_them(count: int) -> None:
    head = ProxyHead(WIDTH, proxies=5)
    few = features(count)
    # Copies tell nothing new.
    (found,) = head.imprint(0, [few.repeat(4, 1)], generator())["head.0.proxies"]
    torch.testing.assert_close(found.norm(dim=1), torch.ones(5))
    assert len(found.unique(dim=0)) == 5
    if count:
        nearness = found @ F.normalize(few, dim=1).T
        assert nearness.max(dim=1).values.min() > 0.999
        torch.testing.assert_close(nearness.max(dim=0).values, torch.ones(count))


@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=5, max_size=5),
    shift=st.floats(-20, 20, width=32),
)
@settings(deadline=None)
def test_a_shift_of_the_new_logits_is_undone_by_beta(logits: list[float], shift: float) -> None:
    bias = BiasCorrection()
    state = bias.start_task(0) | bias.start_task(1)
    straight = torch.tensor([logits])
    crooked = straight + torch.tensor([0.0, 0, 0, shift, shift])
    assert torch.equal(bias.corrected(state, crooked, (3, 2), (0, 1)), crooked)
    state["bias.1.beta"] = torch.tensor([-shift])
    torch.testing.assert_close(bias.corrected(state, crooked, (3, 2), (0, 1)), straight, atol=1e-4, rtol=0)


def test_a_correction_by_hand() -> None:
    state = {
        "bias.0.alpha": torch.tensor([2.0]),
        "bias.0.beta": torch.tensor([1.0]),
        "bias.3.alpha": torch.tensor([-1.0]),
        "bias.3.beta": torch.tensor([0.5]),
    }
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    corrected = BiasCorrection().corrected(state, logits, (1, 2), (0, 3))
    assert corrected.tolist() == [[3, -1.5, -2.5], [9, -4.5, -5.5]]
    swapped = BiasCorrection().corrected(state, logits, (1, 2), (3, 0))
    assert swapped.tolist() == [[-0.5, 5, 7], [-3.5, 11, 13]]


@given(alpha=st.floats(0.1, 5), beta=st.floats(-5, 5), seed=st.integers(0, 1000))
@settings(deadline=None)
def test_the_order_among_a_tasks_classes_does_not_change(alpha: float, beta: float, seed: int) -> None:
    bias = BiasCorrection()
    state = {name: torch.tensor([value]) for name, value in zip(bias.names(0), (alpha, beta), strict=True)}
    state |= bias.start_task(1)
    logits = torch.randn(4, 7, generator=generator(seed))
    corrected = bias.corrected(state, logits, (5, 2), range(2))
    assert torch.equal(corrected[:, :5].argsort(dim=1), logits[:, :5].argsort(dim=1))
    assert torch.equal(corrected[:, 5:], logits[:, 5:])


def test_the_line_can_be_learnt() -> None:
    bias = BiasCorrection()
    state = {name: value.requires_grad_() for name, value in bias.start_task(0).items()}
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    bias.corrected(state, logits, (2,), (0,)).sum().backward()
    assert state["bias.0.alpha"].grad.tolist() == [10]
    assert state["bias.0.beta"].grad.tolist() == [4]
