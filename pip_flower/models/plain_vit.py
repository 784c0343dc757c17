"""The prompted pass without any shortcut: what the fast path in `prompted_vit` must agree with.

Attention is written out, every block computes every token, and the order of operations is that of the
released code, so that rounding errors agree as well; `fidelity: released` runs it. The benchmark
measures the fast path against it.
"""

import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor

from pip_flower.models.prompted_vit import AttachedPrompts, Prefix, inserted


def encode_plainly(vit: VisionTransformer, images: Tensor, prompts: AttachedPrompts, read: slice) -> Tensor:
    """As `prompted_vit.encode`; images [B, 3, S, S] -> [B, len(read), D]."""
    tokens = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    for index, block in enumerate(vit.blocks):
        if index in prompts.insertions:
            tokens = inserted(tokens, prompts.insertions[index])
        tokens = _block(block, tokens, prompts.prefixes.get(index))
    normed: Tensor = vit.norm(tokens)
    return normed[:, read]


def _block(block: Block, tokens: Tensor, prefix: Prefix | None) -> Tensor:
    tokens = tokens + block.drop_path1(block.ls1(_attention(block.attn, block.norm1(tokens), prefix)))
    out: Tensor = tokens + block.drop_path2(block.ls2(block.mlp(block.norm2(tokens))))
    return out


def _attention(attention: Attention, tokens: Tensor, prefix: Prefix | None) -> Tensor:
    batch, count, _ = tokens.shape
    heads, width = attention.num_heads, attention.head_dim
    qkv = attention.qkv(tokens).reshape(batch, count, 3, heads, width).permute(2, 0, 3, 1, 4)
    query, key, value = qkv.unbind(0)
    query, key = attention.q_norm(query), attention.k_norm(key)
    if prefix is not None:
        key = torch.cat([prefix.key.to(key.dtype).expand(batch, -1, -1, -1), key], dim=2)
        value = torch.cat([prefix.value.to(value.dtype).expand(batch, -1, -1, -1), value], dim=2)
    weights = ((query @ key.transpose(-2, -1)) * attention.scale).softmax(dim=-1)
    mixed = (weights @ value).transpose(1, 2).reshape(batch, count, heads * width)
    out: Tensor = attention.proj_drop(attention.proj(attention.norm(mixed)))
    return out
