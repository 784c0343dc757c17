"""AttachedPrompts attached to an unmodified timm ViT, at any block.

Prefix tuning extends a block's keys and values; prompt tuning inserts tokens behind the CLS token and
keeps them from there on. The last block computes queries, projection and MLP only for the tokens that
are read. Layers are timm's own; what is written here is how a block joins them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from timm.layers import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

CLS = slice(0, 1)


@dataclass(frozen=True)
class Prefix:
    """Learned keys and values of one block: [B or 1, heads, length, D / heads] each."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class AttachedPrompts:
    """What a batch gets: `prefixes[i]` in block i; `insertions[i]` [B or 1, P, D] behind the CLS token
    before block i, ahead of earlier ones."""

    prefixes: Mapping[int, Prefix] = field(default_factory=dict)
    insertions: Mapping[int, Tensor] = field(default_factory=dict)

    def rows(self, rows: slice) -> "AttachedPrompts":
        """The prompts of some samples of the batch; what the whole batch shares stays shared."""

        def part(stored: Tensor) -> Tensor:
            return stored if len(stored) == 1 else stored[rows]

        return AttachedPrompts(
            {block: Prefix(part(p.key), part(p.value)) for block, p in self.prefixes.items()},
            {block: part(tokens) for block, tokens in self.insertions.items()},
        )


NO_PROMPTS = AttachedPrompts()


def encode(vit: VisionTransformer, images: Tensor, prompts: AttachedPrompts, read: slice) -> Tensor:
    """The tokens at `read` after the final norm; images [B, 3, S, S] -> [B, len(read), D]."""
    tokens = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    last = len(vit.blocks) - 1
    for index, block in enumerate(vit.blocks):
        if index in prompts.insertions:
            tokens = inserted(tokens, prompts.insertions[index])
        needed = read if index == last else slice(None)
        tokens = attended_block(block, tokens, prompts.prefixes.get(index), needed)
    normed: Tensor = vit.norm(tokens)
    return normed


def attended_block(block: Block, tokens: Tensor, prefix: Prefix | None, read: slice) -> Tensor:
    """One pre-norm block: tokens [B, N, D] -> those at `read`, which attend to all and to `prefix`."""
    attended = _attention(block.attn, block.norm1(tokens), prefix, read)
    tokens = tokens[:, read] + block.drop_path1(block.ls1(attended))
    out: Tensor = tokens + block.drop_path2(block.ls2(block.mlp(block.norm2(tokens))))
    return out


def _attention(attention: Attention, tokens: Tensor, prefix: Prefix | None, read: slice) -> Tensor:
    query, key, value = _query_key_value(attention, tokens, read)
    query, key = attention.q_norm(query), attention.k_norm(key)
    if prefix is not None:
        batch = len(tokens)
        key = torch.cat([prefix.key.to(key.dtype).expand(batch, -1, -1, -1), key], dim=2)
        value = torch.cat([prefix.value.to(value.dtype).expand(batch, -1, -1, -1), value], dim=2)
    mixed = F.scaled_dot_product_attention(query, key, value, scale=attention.scale)
    mixed = mixed.transpose(1, 2).flatten(2)
    out: Tensor = attention.proj_drop(attention.proj(attention.norm(mixed)))
    return out


def _query_key_value(attention: Attention, tokens: Tensor, read: slice) -> tuple[Tensor, ...]:
    """Queries of the tokens at `read`, keys and values of all: [B, heads, count, D / heads] each."""
    if read == slice(None):
        return _by_head(attention.qkv(tokens), 3, attention)
    weight, bias = attention.qkv.weight, attention.qkv.bias
    width = attention.num_heads * attention.head_dim
    first, rest = (None, None) if bias is None else (bias[:width], bias[width:])
    (query,) = _by_head(F.linear(tokens[:, read], weight[:width], first), 1, attention)
    key, value = _by_head(F.linear(tokens, weight[width:], rest), 2, attention)
    return query, key, value


def _by_head(projected: Tensor, parts: int, attention: Attention) -> tuple[Tensor, ...]:
    batch, count, _ = projected.shape
    split = projected.view(batch, count, parts, attention.num_heads, attention.head_dim)
    # Split before transposing: going back, the gradients are then joined in one copy, not in two.
    return tuple(part.transpose(1, 2) for part in split.unbind(2))


def inserted(tokens: Tensor, prompt: Tensor) -> Tensor:
    """Tokens [B, N, D] with prompt [B or 1, P, D] behind the CLS token."""
    prompt = prompt.to(tokens.dtype).expand(len(tokens), -1, -1)
    return torch.cat([tokens[:, :1], prompt, tokens[:, 1:]], dim=1)


def cls_position(vit: VisionTransformer) -> Tensor | float:
    """Position embedding of the CLS token [1, 1, D]; nothing where the ViT gives CLS none."""
    if vit.pos_embed is None or vit.no_embed_class:
        return 0.0
    position: Tensor = vit.pos_embed[:, :1]
    return position


def unsupported(vit: nn.Module) -> str | None:
    """Why prompts cannot be attached to `vit`, or None if they can."""
    if not isinstance(vit, VisionTransformer):
        return f"it is a {type(vit).__name__}, not a timm VisionTransformer"
    if not vit.has_class_token:
        return "it has no CLS token"
    for block in vit.blocks:
        if type(block) is not Block:
            return f"its blocks are {type(block).__name__}, not pre-norm attention then MLP"
        if type(block.attn) is not Attention or getattr(block.attn, "gate", None) is not None:
            return f"its attention is {type(block.attn).__name__} or gated, not plain"
    return None
