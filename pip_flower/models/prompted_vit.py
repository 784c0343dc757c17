"""Prompts attached to an unmodified timm ViT, at any block.

Prefix tuning extends a block's keys and values; prompt tuning inserts tokens behind the CLS token and
keeps them from there on. Everything that no prompt touches is timm's own forward code.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor


@dataclass(frozen=True)
class Prefix:
    """Learned keys and values of one block: [B or 1, heads, length, D / heads] each."""

    key: Tensor
    value: Tensor


def prompted_tokens(
    vit: VisionTransformer,
    images: Tensor,
    prefixes: Mapping[int, Prefix] | None = None,
    insertions: Mapping[int, Tensor] | None = None,
) -> Tensor:
    """All tokens after the final norm; images [B, 3, S, S] -> [B, N, D].

    `insertions[i]` [B, P, D] enter behind the CLS token before block i, ahead of earlier ones.
    """
    prefixes, insertions = prefixes or {}, insertions or {}
    tokens = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    for index, block in enumerate(vit.blocks):
        if index in insertions:
            inserted = insertions[index].to(tokens.dtype)
            tokens = torch.cat([tokens[:, :1], inserted, tokens[:, 1:]], dim=1)
        prefix = prefixes.get(index)
        tokens = block(tokens) if prefix is None else prefixed_block(block, tokens, prefix)
    normed: Tensor = vit.norm(tokens)
    return normed


def prefixed_block(block: Block, tokens: Tensor, prefix: Prefix) -> Tensor:
    """One pre-norm transformer block whose attention also sees `prefix`; tokens [B, N, D]."""
    attended = _prefixed_attention(block.attn, block.norm1(tokens), prefix)
    tokens = tokens + block.drop_path1(block.ls1(attended))
    out: Tensor = tokens + block.drop_path2(block.ls2(block.mlp(block.norm2(tokens))))
    return out


def _prefixed_attention(attention: torch.nn.Module, tokens: Tensor, prefix: Prefix) -> Tensor:
    batch, count, _ = tokens.shape
    heads, head_dim = attention.num_heads, attention.head_dim
    qkv = attention.qkv(tokens).reshape(batch, count, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
    query, key, value = qkv.unbind(0)
    query, key = attention.q_norm(query), attention.k_norm(key)
    key = torch.cat([prefix.key.to(key.dtype).expand(batch, -1, -1, -1), key], dim=2)
    value = torch.cat([prefix.value.to(value.dtype).expand(batch, -1, -1, -1), value], dim=2)
    mixed = F.scaled_dot_product_attention(query, key, value, scale=attention.scale)
    mixed = mixed.transpose(1, 2).reshape(batch, count, heads * head_dim)
    out: Tensor = attention.proj_drop(attention.proj(attention.norm(mixed)))
    return out


def cls_position(vit: VisionTransformer) -> Tensor | float:
    """Position embedding of the CLS token [1, 1, D]; nothing where the ViT gives CLS none."""
    if vit.pos_embed is None or vit.no_embed_class:
        return 0.0
    position: Tensor = vit.pos_embed[:, :1]
    return position
