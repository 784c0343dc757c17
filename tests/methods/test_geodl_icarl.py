"""GeoDL: G is the integral of the geodesic flow."""

import pytest
import torch

from pip_flower.methods.geodl_icarl import basis, flow, geodesic_distance


def drawn(*shape: int, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def orthonormal(width: int, rank: int, seed: int) -> torch.Tensor:
    return torch.linalg.qr(drawn(width, rank, seed=seed)).Q


def metric(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    frame, core = flow(start, end)
    return frame @ core @ frame.T


def integral(start: torch.Tensor, end: torch.Tensor, steps: int = 2000) -> torch.Tensor:
    """Of Phi(v) Phi(v)', Phi(v) = P U1 cos(v a) - R U2 sin(v a), R a basis of all that is not in P."""
    width, rank = start.shape
    complement = torch.linalg.svd(start).U[:, rank:]
    left, cosines, right = torch.linalg.svd(start.T @ end)
    angles = torch.arccos(cosines.clamp(-1, 1))
    second = -(complement.T @ end @ right.T) / torch.sin(angles)
    total = torch.zeros(width, width, dtype=start.dtype)
    for step in range(steps):
        at = (step + 0.5) / steps * angles
        phi = start @ left * torch.cos(at) - complement @ second * torch.sin(at)
        total += phi @ phi.T / steps
    return total


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_numeric_integral_of_the_flow(seed: int) -> None:
    start, end = orthonormal(12, 3, seed), orthonormal(12, 3, seed + 10)
    torch.testing.assert_close(metric(start, end), integral(start, end), atol=1e-6, rtol=0)


def test_the_flow_is_symmetric_and_has_no_negative_direction() -> None:
    found = metric(orthonormal(12, 4, 1), orthonormal(12, 4, 2))
    torch.testing.assert_close(found, found.T)
    assert float(torch.linalg.eigvalsh(found).min()) > -1e-9
    torch.testing.assert_close(found, metric(orthonormal(12, 4, 2), orthonormal(12, 4, 1)))


def test_equal_subspaces_give_their_projection() -> None:
    start = orthonormal(12, 4, 1)
    turned = start @ torch.linalg.qr(drawn(4, 4)).Q
    torch.testing.assert_close(metric(start, turned), start @ start.T, atol=1e-6, rtol=0)


def test_a_subspace_is_spanned_by_the_main_directions() -> None:
    features = drawn(9, 2) @ orthonormal(20, 2, 5).T + 4
    found = basis(features, 2)
    expected = orthonormal(20, 2, 5)
    torch.testing.assert_close(found @ found.T, expected @ expected.T)


@pytest.mark.parametrize("distance", ["cosine", "squared"])
@pytest.mark.parametrize("batch", [2, 3, 16])
def test_a_model_like_its_teacher_is_at_no_distance(distance: str, batch: int) -> None:
    before = drawn(batch, 24)
    assert float(geodesic_distance(before, before, 8, distance)) == pytest.approx(0, abs=1e-6)
    other = (before + 0.3 * drawn(batch, 24, seed=9)).requires_grad_()
    apart = geodesic_distance(other, before, 8, distance)
    (gradient,) = torch.autograd.grad(apart, other)
    assert float(apart.detach()) > 1e-4
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0
