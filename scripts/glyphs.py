"""An endless procedural alphabet: random stroke classes rendered as small noisy images.

A class is one to four strokes (lines, quadratic Beziers, elliptical arcs, closed loops). Every
stroke is ``points = basis(t) @ controls`` with three control vectors, which makes the whole
alphabet a handful of tensors and lets a batch be drawn without any Python loop over images:

* curves use the Bernstein basis and three control points (a line has its middle one centred);
* arcs use the basis ``(1, cos, sin)`` and a centre followed by two half-axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

IMAGE_SIZE = 32
MAX_STROKES = 4
SEGMENTS = 10
"""Straight pieces used to draw one stroke."""


@dataclass(frozen=True)
class Alphabet:
    """Stroke parameters of C glyph classes with K stroke slots each.

    Attributes:
        controls: control vectors, [C, K, 3, 2], in a frame of roughly [-1, 1].
        angles: start and sweep of the arcs in radians, [C, K, 2].
        is_arc: whether the slot is an arc or loop, [C, K].
        source: slot that each slot really draws, [C, K]; unused slots repeat slot 0.
    """

    controls: Tensor
    angles: Tensor
    is_arc: Tensor
    source: Tensor

    def __len__(self) -> int:
        return self.controls.shape[0]


def _uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator) * (high - low) + low


def _normal(generator: torch.Generator, std: float, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator) * std


def _chance(generator: torch.Generator, probability: float, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator) < probability


def _stroke_points(controls: Tensor, angles: Tensor, is_arc: Tensor) -> Tensor:
    """Sample strokes as polylines: [..., 3, 2], [..., 2], [...] -> [..., SEGMENTS + 1, 2]."""
    t = torch.linspace(0.0, 1.0, SEGMENTS + 1)
    bernstein = torch.stack([(1 - t) ** 2, 2 * t * (1 - t), t**2], dim=-1)
    theta = angles[..., :1] + angles[..., 1:] * t
    arc = torch.stack([torch.ones_like(theta), theta.cos(), theta.sin()], dim=-1)
    return torch.where(is_arc[..., None, None], arc, bernstein) @ controls


def _random_curves(generator: torch.Generator, count: int) -> Tensor:
    """Lines (one in three) and quadratic Beziers of a visible length: [count, 3, 2]."""
    start = _uniform(generator, -1, 1, count, 2)
    heading = _uniform(generator, 0, 2 * math.pi, count)
    length = _uniform(generator, 0.7, 2.0, count, 1)
    along = torch.stack([heading.cos(), heading.sin()], dim=-1) * length
    normal = torch.stack([-along[:, 1], along[:, 0]], dim=-1)
    bend = _uniform(generator, -1.2, 1.2, count, 1) * _chance(generator, 2 / 3, count, 1)
    skew = _uniform(generator, -0.3, 0.3, count, 1) * (bend != 0)
    middle = start + (0.5 + skew) * along + bend * normal
    return torch.stack([start, middle, start + along], dim=1)


def _random_arcs(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Tilted elliptical arcs, two in five of them closed: [count, 3, 2] and [count, 2]."""
    centre = _uniform(generator, -0.5, 0.5, count, 2)
    radii = _uniform(generator, 0.3, 0.9, count, 2)
    tilt = _uniform(generator, -0.6, 0.6, count)
    axis = torch.stack([tilt.cos(), tilt.sin()], dim=-1)
    normal = torch.stack([-axis[:, 1], axis[:, 0]], dim=-1)
    controls = torch.stack([centre, axis * radii[:, :1], normal * radii[:, 1:]], dim=1)
    sweep = _uniform(generator, 0.6 * math.pi, 1.6 * math.pi, count)
    sweep = torch.where(_chance(generator, 0.4, count), torch.full_like(sweep, 2 * math.pi), sweep)
    sweep = torch.where(_chance(generator, 0.5, count), sweep, -sweep)
    start = _uniform(generator, 0, 2 * math.pi, count)
    return controls, torch.stack([start, sweep], dim=-1)


def make_alphabet(classes: int, generator: torch.Generator) -> Alphabet:
    """Invent ``classes`` glyphs.

    Most strokes begin on the stroke before them, because unconnected scribbles look nothing like
    writing.
    """
    slots = MAX_STROKES
    is_arc = _chance(generator, 0.45, classes, slots)
    curves = _random_curves(generator, classes * slots).view(classes, slots, 3, 2)
    arcs, angles = _random_arcs(generator, classes * slots)
    controls = torch.where(is_arc[..., None, None], arcs.view(classes, slots, 3, 2), curves)
    angles = angles.view(classes, slots, 2)
    # A translation moves all three control points of a curve but only the centre of an arc.
    movable = torch.where(is_arc[..., None], torch.tensor([1.0, 0.0, 0.0]), torch.ones(3))
    attached = _chance(generator, 0.8, classes, slots)
    joint = torch.randint(SEGMENTS + 1, (classes, slots), generator=generator)
    joint = torch.where(_chance(generator, 0.6, classes, slots), SEGMENTS, joint)
    rows = torch.arange(classes)
    for slot in range(1, slots):
        points = _stroke_points(controls, angles, is_arc)
        gap = points[rows, slot - 1, joint[:, slot]] - points[:, slot, 0]
        gap = gap * attached[:, slot, None]
        controls[:, slot] += movable[:, slot, :, None] * gap[:, None, :]
    strokes = torch.multinomial(
        torch.tensor([0.1, 0.35, 0.35, 0.2]), classes, replacement=True, generator=generator
    )
    order = torch.arange(slots).expand(classes, slots)
    source = torch.where(order <= strokes[:, None], order, 0)
    return Alphabet(controls, angles, is_arc, source)


def _pose(points: Tensor, difficulty: float, generator: torch.Generator) -> Tensor:
    """Warp, rotate, shear, fit to the frame and shift each glyph: [B, N, 2] -> [B, N, 2]."""
    batch = points.shape[0]
    wave = _normal(generator, 1.3, batch, 2, 2)
    phase = _uniform(generator, 0, 2 * math.pi, batch, 1, 2)
    amplitude = _uniform(generator, 0.0, 0.16 * difficulty, batch, 1, 2)
    points = points + amplitude * torch.sin(points @ wave + phase)

    angle = _normal(generator, math.radians(8) * difficulty, batch).clamp(-0.3, 0.3)
    shear = _normal(generator, 0.15 * difficulty, batch)
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([cos, sin, shear * cos - sin, shear * sin + cos], dim=-1)
    points = points @ turn.view(batch, 2, 2)

    low, high = points.amin(1, keepdim=True), points.amax(1, keepdim=True)
    extent = (high - low).amax(-1, keepdim=True) / 2
    points = (points - (low + high) / 2) / extent.clamp_min(1e-3)
    scale = _uniform(generator, 0.9 - 0.3 * difficulty, 0.95, batch, 1, 1)
    stretch = (_uniform(generator, -0.25, 0.25, batch, 1, 1) * difficulty).exp()
    stretch = torch.cat([stretch, 1 / stretch], dim=-1).clamp_max(1.0)
    return points * scale * stretch + _normal(generator, 0.07 * difficulty, batch, 1, 2)


def _distances(polylines: Tensor) -> Tensor:
    """Distance from every pixel to the nearest stroke.

    [B, K, SEGMENTS + 1, 2] in the frame [-1, 1] -> [B, 1, IMAGE_SIZE, IMAGE_SIZE].
    """
    start = polylines[:, :, :-1].flatten(1, 2)
    along = polylines[:, :, 1:].flatten(1, 2) - start
    length = along.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    unit = along / length
    normal = torch.stack([-unit[..., 1], unit[..., 0]], dim=-1)
    axis = (torch.arange(IMAGE_SIZE) + 0.5) * (2 / IMAGE_SIZE) - 1
    pixels = torch.cartesian_prod(axis, axis).flip(-1).T.expand(len(start), 2, -1)
    # Both coordinates of a pixel in a segment's own frame are affine, hence one product each.
    forward = torch.baddbmm(-(unit * start).sum(-1, keepdim=True), unit, pixels)
    sideways = torch.baddbmm(-(normal * start).sum(-1, keepdim=True), normal, pixels)
    half = length / 2
    beyond = forward.sub_(half).abs_().sub_(half).clamp_min_(0)
    squared = sideways.square_().addcmul_(beyond, beyond).amin(dim=1)
    return squared.sqrt().view(-1, 1, IMAGE_SIZE, IMAGE_SIZE)


def _degrade(ink: Tensor, generator: torch.Generator) -> Tensor:
    """Imitate scans of 8, 16 or 32 pixels a side: [B, 1, H, W] -> same."""
    batch = ink.shape[0]
    pick = torch.rand((batch, 1, 1, 1), generator=generator)
    for factor, low, high in ((2, 0.35, 0.6), (4, 0.6, 1.0)):
        coarse = F.interpolate(
            F.avg_pool2d(ink, factor), size=ink.shape[-2:], mode="bilinear", align_corners=False
        )
        ink = torch.where((pick >= low) & (pick < high), coarse, ink)
    return ink


def _colour(ink: Tensor, difficulty: float, generator: torch.Generator) -> Tensor:
    """Paint ink over paper, with either polarity and sometimes in colour: -> [B, 3, H, W]."""
    batch = ink.shape[0]
    coloured = _chance(generator, 0.3 * difficulty, batch, 1, 1, 1)
    bright = _uniform(generator, 1.0 - 0.45 * difficulty, 1.0, batch, 3, 1, 1)
    dark = _uniform(generator, 0.0, 0.3 * difficulty, batch, 3, 1, 1)
    black = _chance(generator, 0.5, batch, 1, 1, 1)
    bright = torch.where(coloured, bright, bright[:, :1])
    dark = torch.where(coloured, dark, dark[:, :1] * ~black)
    inverted = _chance(generator, 0.3 * difficulty, batch, 1, 1, 1)
    paper, pen = torch.where(inverted, bright, dark), torch.where(inverted, dark, bright)
    image = torch.lerp(paper, pen, ink)
    strength = _uniform(generator, -0.04, 0.06, batch, 1, 1, 1).clamp_min(0)
    return (image + strength * _normal(generator, 1.0, *image.shape)).clamp_(0, 1)


def render(alphabet: Alphabet, labels: Tensor, generator: torch.Generator, difficulty: float = 1.0) -> Tensor:
    """Draw one fresh sample of each requested class.

    Args:
        alphabet: the classes.
        labels: class indices, [B].
        generator: the only source of randomness.
        difficulty: from 0 (white on black, hardly any jitter) to 1 (everything varies).

    Returns:
        Images in [0, 1], [B, 3, IMAGE_SIZE, IMAGE_SIZE].
    """
    batch = labels.shape[0]
    controls = alphabet.controls[labels]
    controls = controls + _normal(generator, 0.07 * difficulty, *controls.shape)
    angles = alphabet.angles[labels]
    angles = angles + _normal(generator, 0.15 * difficulty, *angles.shape)
    points = _stroke_points(controls, angles, alphabet.is_arc[labels])
    slots = alphabet.source[labels]
    points = points[torch.arange(batch)[:, None], slots]
    polylines = _pose(points.flatten(1, 2), difficulty, generator).view_as(points)
    thickness = _uniform(generator, 0.05, 0.15, batch, 1, 1, 1)
    softness = _uniform(generator, 0.06, 0.12, batch, 1, 1, 1)
    ink = ((thickness - _distances(polylines)) / softness + 0.5).clamp_(0, 1)
    return _colour(_degrade(ink, generator), difficulty, generator)
