"""Fixture files in the form of the authors' release, from a second implementation that shares no code with
the package: parameters as the release stores them, attention and losses written out."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from support.toy import toy_vit

TASK, CLASSES, HEADS = 1, np.arange(20).reshape(2, 10), 2
Params = dict[str, Tensor]


def write_fixtures(directory: Path, seed: int) -> None:
    """All files, as described in the README beside the authors' own."""
    g = torch.Generator().manual_seed(seed)
    weights = {k: v.detach() for k, v in toy_vit(seed).state_dict().items()}
    dual, l2p = _dual_params(g), _l2p_params(g)
    mask = {"class_mask": CLASSES, "task_id": TASK, "lr": 0.015}
    files: dict[str, dict[str, Any]] = {
        "backbone": weights,
        "dualprompt_forward": {**_named("param.", dual), **mask, "pull_coeff": 1.0},
        "l2p_forward": {**_named("param.", l2p), **mask, "pull_coeff": 0.1},
    }
    for case, count in (("B6", 6), ("B5", 5), ("proto_B6", 6)):
        x = torch.rand(count, 3, 32, 32, generator=g)
        y = torch.tensor([10, 13, 16, 19, 12, 15][:count])
        extra = None
        if case == "proto_B6":
            extra = torch.randn(30, 32, generator=g), torch.arange(10, 20).repeat(3)
        found = _case(weights, dual, x, y, 1.0, extra)
        files["dualprompt_forward"] |= _named(f"{case}.", found)
        if extra is None:
            files["l2p_forward"] |= _named(f"{case}.", _case(weights, l2p, x, y, 0.1, None))
    batches = {}
    for i, count in enumerate((16, 16, 9)):
        batches[f"batch{i}.x"] = torch.rand(count, 3, 32, 32, generator=g)
        batches[f"batch{i}.y"] = torch.tensor([10, 10, 11, 11, 12, 12, 13, 14, 14])[torch.arange(count) % 9]
    shared = {**_named("param.", dual), **batches, "task_id": TASK}
    shared["available_classes"] = torch.tensor([12, 10, 11, 14])
    files["prototype"] = {**shared, **_prototypes(weights, dual, shared)}
    files["fed_weighted_avg_prototype"] = table = _global_table(g)
    epoch = {**shared, "lr": 0.015, "clip": 1.0, "pull_coeff": 1.0}
    files["local_epoch"] = {**epoch, **_epochs(weights, dual, epoch, table, g)}
    files["fed_weighted_avg"] = _averages(dual, g)
    files["client_round"] = _client_round(weights, dual, table, g)
    for name, arrays in files.items():
        np.savez(directory / f"{name}.npz", **{k: np.asarray(v) for k, v in arrays.items()})


def _dual_params(g: torch.Generator) -> Params:
    return {
        "g_prompt": torch.rand(2, 2, 5, HEADS, 16, generator=g) * 2 - 1,
        "e_prompt.prompt": torch.rand(3, 2, 10, 5, HEADS, 16, generator=g) * 2 - 1,
        "e_prompt.prompt_key": torch.rand(10, 32, generator=g) * 2 - 1,
        "head.weight": torch.randn(20, 32, generator=g) * 0.2,
        "head.bias": torch.randn(20, generator=g) * 0.1,
    }


def _l2p_params(g: torch.Generator) -> Params:
    return {
        "prompt.prompt": torch.rand(10, 5, 32, generator=g) * 2 - 1,
        "prompt.prompt_key": torch.rand(10, 32, generator=g) * 2 - 1,
        "head.weight": torch.randn(20, 32, generator=g) * 0.2,
        "head.bias": torch.randn(20, generator=g) * 0.1,
    }


def _vit(w: Params, x: Tensor, prefixes: dict[int, Tensor], tokens: Tensor | None = None) -> Tensor:
    """All tokens after the final norm; prefixes[i] [B, 2, length, heads, d], tokens [B, P, D] with CLS's
    position."""
    b = len(x)
    h = F.conv2d(x, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=8)
    h = torch.cat([w["cls_token"].expand(b, -1, -1), h.flatten(2).transpose(1, 2)], dim=1) + w["pos_embed"]
    if tokens is not None:
        h = torch.cat([h[:, :1], tokens + w["pos_embed"][:, :1], h[:, 1:]], dim=1)
    for i in range(6):
        p = f"blocks.{i}."
        n = F.layer_norm(h, (32,), w[p + "norm1.weight"], w[p + "norm1.bias"], 1e-6)
        qkv = F.linear(n, w[p + "attn.qkv.weight"], w[p + "attn.qkv.bias"])
        q, k, v = qkv.reshape(b, -1, 3, HEADS, 16).permute(2, 0, 3, 1, 4)
        if i in prefixes:
            k = torch.cat([prefixes[i][:, 0].transpose(1, 2), k], dim=2)
            v = torch.cat([prefixes[i][:, 1].transpose(1, 2), v], dim=2)
        a = ((q @ k.transpose(-2, -1)) * 16**-0.5).softmax(-1) @ v
        a = a.transpose(1, 2).reshape(b, -1, 32)
        h = h + F.linear(a, w[p + "attn.proj.weight"], w[p + "attn.proj.bias"])
        n = F.layer_norm(h, (32,), w[p + "norm2.weight"], w[p + "norm2.bias"], 1e-6)
        n = F.gelu(F.linear(n, w[p + "mlp.fc1.weight"], w[p + "mlp.fc1.bias"]))
        h = h + F.linear(n, w[p + "mlp.fc2.weight"], w[p + "mlp.fc2.bias"])
    return F.layer_norm(h, (32,), w["norm.weight"], w["norm.bias"], 1e-6)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x**2).sum(1, keepdim=True).clamp(min=1e-12))


def _forward(w: Params, p: Params, x: Tensor, train: bool) -> dict[str, Any]:
    b = len(x)
    dual = "g_prompt" in p
    with torch.no_grad():
        query = _vit(w, x, {})[:, 0]
    keys, unit = _unit(p["e_prompt.prompt_key" if dual else "prompt.prompt_key"]), _unit(query)
    similarity = unit @ keys.T
    k = 1 if dual else 5
    ids, votes = torch.unique(similarity.topk(k, dim=1).indices, return_counts=True)
    votes = torch.cat([votes, torch.zeros(10 - len(votes), dtype=votes.dtype)])
    ids = torch.cat([ids, torch.zeros(10 - len(ids), dtype=ids.dtype)])
    slots = ids[votes.topk(k).indices].expand(b, -1)
    if dual and train:
        slots = torch.full((b, 1), TASK)
    out = {"similarity": similarity, "prompt_idx": slots, "x_embed_norm": unit, "query": query}
    out["reduce_sim"] = (keys[slots] * unit.unsqueeze(1)).sum() / b
    if dual:
        raw = p["e_prompt.prompt"][:, :, slots]
        batched = raw.reshape(3, b, 2, 5, HEADS, 16)
        prefixes = {i: p["g_prompt"][i].expand(b, -1, -1, -1, -1) for i in (0, 1)}
        prefixes |= {i: batched[i - 2] for i in (2, 3, 4)}
        out |= {"batched_prompt": batched, "pre_logits": _vit(w, x, prefixes)[:, 0]}
    else:
        tokens = p["prompt.prompt"][slots].reshape(b, 25, 32)
        out["pre_logits"] = _vit(w, x, {}, tokens)[:, 1:26].mean(dim=1)
    return out


def _loss(w: Params, p: Params, x: Tensor, y: Tensor, pull: float, extra: Any) -> dict[str, Any]:
    out = _forward(w, p, x, train=True)
    features, labels = out["pre_logits"], y
    if extra is not None:
        features, labels = torch.cat([features, extra[0]]), torch.cat([y, extra[1]])
    out["logits"] = F.linear(features, p["head.weight"], p["head.bias"])
    out["ce"] = F.cross_entropy(out["logits"].index_fill(1, torch.arange(10), -torch.inf), labels)
    out["loss"] = out["ce"] - pull * out["reduce_sim"]
    return out


def _case(w: Params, params: Params, x: Tensor, y: Tensor, pull: float, extra: Any) -> dict[str, Any]:
    p = {k: v.clone().requires_grad_() for k, v in params.items()}
    out = _loss(w, p, x, y, pull, extra)
    out["loss"].backward()
    gradients = {k: v.grad.clone() for k, v in p.items() if v.grad is not None}
    found = {"x": x, "y": y, "query_pre_logits": out.pop("query"), **_named("grad.", gradients)}
    found["grad_norm"] = torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
    torch.optim.Adam(p.values(), lr=0.015).step()
    found |= {**_named("train.", out), **_named("after_step.", p)}
    if extra is not None:
        return {**found, "proto": extra[0], "proto_label": extra[1]}
    if "g_prompt" in params:
        found["train.prelogits_fn"] = out["pre_logits"].detach()
    seen = _forward(w, params, x, train=False)
    seen["logits"] = F.linear(seen["pre_logits"], params["head.weight"], params["head.bias"])
    wanted = ("logits", "pre_logits", "reduce_sim", "prompt_idx", "similarity")
    return found | _named("eval.", {k: seen[k] for k in wanted})


def _kept(f: dict[str, Any], i: int) -> tuple[Tensor, Tensor]:
    keep = torch.isin(f[f"batch{i}.y"], f["available_classes"])
    return f[f"batch{i}.x"][keep], f[f"batch{i}.y"][keep]


def _prototypes(w: Params, p: Params, f: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    seen = []
    for i in range(3):
        x, y = _kept(f, i)
        z = _forward(w, p, x, train=True)["pre_logits"]
        out |= {f"batch{i}.features": z, f"batch{i}.kept_y": y}
        seen.append((z, y))
    out |= _statistics(seen)
    x, y = f["batch0.x"][:5], torch.tensor([11, 11, 11, 19, 11])
    z = _forward(w, p, x, train=True)["pre_logits"]
    several = z[y == 11]
    out |= {"nan.x": x, "nan.y": y, "nan.classes": torch.tensor([11, 19])}
    out["nan.mu"] = torch.stack([several.mean(0), z[3]])
    out["nan.var"] = torch.stack([several.var(0), torch.full((32,), torch.nan)])
    return out


def _statistics(batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Class means, and the unbiased variances of batches merged as if they were the population's."""
    stats: dict[int, list[tuple[int, Tensor, Tensor]]] = {}
    for z, y in batches:
        for c in y.unique().tolist():
            # A variance of one sample is NaN; torch warns of it, and the release does not care.
            one = torch.full((32,), torch.nan)
            spread = z[y == c].var(0) if (y == c).sum() > 1 else one
            stats.setdefault(c, []).append((int((y == c).sum()), z[y == c].mean(0), spread))
    classes = list(stats)[::-1]
    mean, var = [], []
    for c in classes:
        n = sum(m for m, _, _ in stats[c])
        mean.append(sum(m * mu for m, mu, _ in stats[c]) / n)
        var.append(sum(m * (v + mu**2) for m, mu, v in stats[c]) / n - mean[-1] ** 2)
    return {"classes": torch.tensor(classes), "mu": torch.stack(mean), "var": torch.stack(var)}


def _client_round(w: Params, params: Params, table: Any, g: torch.Generator) -> dict[str, Any]:
    """Two epochs over 60 samples of the task in batches of 16, of which the client keeps four classes, and
    the pass that its prototypes are taken from."""
    epochs, count, size = 2, 60, 16
    x, y = torch.rand(count, 3, 32, 32, generator=g), torch.randint(10, 16, (count,), generator=g)
    held = torch.tensor([11, 10, 14, 13])
    order = torch.stack([torch.randperm(count, generator=g) for _ in range(epochs + 1)])
    mu, var, labels = table["global.mu"], table["global.var_reference"], table["global.classes"]
    draw = torch.rand(epochs, *mu.shape, generator=g)
    out: dict[str, Any] = {"x": x, "y": y, "available_classes": held, "task_id": TASK, "lr": 0.015}
    out |= {"pull_coeff": 1.0, "batch_size": size, "order": order, "rand_u01": draw}
    out |= {"global.classes": labels, "global.mu": mu, "global.var": var, **_named("param.", params)}

    def batches(epoch: int) -> list[tuple[Tensor, Tensor]]:
        drawn = [(x[rows], y[rows]) for rows in order[epoch].split(size)]
        kept = [(xs[torch.isin(ys, held)], ys[torch.isin(ys, held)]) for xs, ys in drawn]
        return [(xs, ys) for xs, ys in kept if len(ys)]

    p = {k: v.clone().requires_grad_() for k, v in params.items()}
    optimizer = torch.optim.Adam(p.values(), lr=0.015)
    for epoch, name in enumerate(("first", "last")):
        step = draw[epoch] / 3 * var**2
        extra = torch.cat([mu, mu + step, mu - step]).float(), labels.repeat(3)
        losses = []
        for xs, ys in batches(epoch):
            loss = _loss(w, p, xs, ys, 1.0, extra)["loss"]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
            optimizer.step()
            losses.append(loss.item())
        out[f"mean_loss.{name}"] = float(np.mean(losses))
    with torch.no_grad():
        seen = [(_forward(w, p, xs, train=True)["pre_logits"], ys) for xs, ys in batches(epochs)]
    return {**out, **_named("after_round.", p), **_named("prototype.", _statistics(seen))}


def _global_table(g: torch.Generator) -> dict[str, Any]:
    rho = torch.tensor([1, 3, 2])
    held = [[10, 11, 12, 15, 16, 19], [11, 12, 13, 14, 17, 19], [10, 12, 14, 15, 17, 19]]
    out: dict[str, Any] = {"clients_weight": rho, "task_id": TASK, "classes_per_task": 10}
    for i, classes in enumerate(held):
        out |= {f"client{i}.classes": torch.tensor(classes), f"client{i}.mu": torch.randn(6, 32, generator=g)}
        out[f"client{i}.var"] = torch.rand(6, 32, generator=g)
    classes = sorted({c for row in held for c in row})
    mean, exact = [], []
    for c in classes:
        who = [(i, held[i].index(c)) for i in range(3) if c in held[i]]
        total = sum(int(rho[i]) for i, _ in who)
        rows = [
            (int(rho[i]) / total, out[f"client{i}.mu"][r].double(), out[f"client{i}.var"][r]) for i, r in who
        ]
        mean.append(sum(share * mu for share, mu, _ in rows))
        exact.append(sum(share * (mu**2 + var) for share, mu, var in rows) - mean[-1] ** 2)
    mu = torch.stack(mean)
    out |= {"global.classes": torch.tensor(classes), "global.mu": mu, "global.var_reference": -(mu**2)}
    return {**out, "paper_eq15.var": torch.stack(exact)}


def _epochs(w: Params, params: Params, f: dict[str, Any], table: Any, g: torch.Generator) -> dict[str, Any]:
    mu, var, labels = table["global.mu"], table["global.var_reference"], table["global.classes"]
    draw = torch.rand(mu.shape, generator=g)
    step = draw / 3 * var**2
    injected = torch.cat([mu, mu + step, mu - step])
    out: dict[str, Any] = {"v2.rand_u01": draw, "v2.injected_proto": injected}
    out |= {"v2.global.classes": labels, "v2.global.mu": mu, "v2.global.var": var}
    for version, extra in (("v1", None), ("v2", (injected.float(), labels.repeat(3)))):
        p = {k: v.clone().requires_grad_() for k, v in params.items()}
        optimizer = torch.optim.Adam(p.values(), lr=0.015)
        losses = []
        for i in range(3):
            loss = _loss(w, p, *_kept(f, i), 1.0, extra)["loss"]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
            optimizer.step()
            losses.append(loss.item())
        out |= _named(f"{version}.after_epoch.", p) | {f"{version}.mean_loss": float(np.mean(losses))}
    return out


def _averages(params: Params, g: torch.Generator) -> dict[str, Any]:
    rho = torch.tensor([1.0, 3.0, 2.0])
    clients = [{k: v + torch.randn(v.shape, generator=g) for k, v in params.items()} for _ in rho]
    out: dict[str, Any] = {"clients_weight": rho.long(), **_named("server_before.", params)}
    for i, client in enumerate(clients):
        out |= _named(f"client{i}.", client)
    for rule, weight, head in (
        ("FedWeightedAvg", rho / 6, False),
        ("FedWeightedAvgWithHead", rho / 6, True),
        ("FedAvg", torch.ones(3) / 3, False),
    ):
        for k, before in params.items():
            mean = sum(share * client[k] for share, client in zip(weight, clients, strict=True))
            out[f"{rule}.{k}"] = before if k.startswith("head") and not head else mean
    return out


def _named(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {prefix + k: v.detach() if isinstance(v, Tensor) else v for k, v in arrays.items()}
