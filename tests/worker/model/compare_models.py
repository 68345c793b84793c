#!/usr/bin/env python3
"""Compares logits, loss and every gradient with transformers, for each of model_variants.py.

    compare_models.py MODEL_OUTPUTS [VARIANT ...]

MODEL_OUTPUTS is the program built from model_outputs.cc. Needs torch and transformers.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import model_variants
import safetensors.torch
import torch
import transformers

# The last is longer than a block of a window of 40.
LENGTHS = [7, 1, 30, 57]
# Of the largest logit, and of a gradient's norm.
TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-2}
GRADIENT_TOLERANCE = {"float32": 2e-5, "bfloat16": 1e-1}


def make_model(variant, index):
    """A model with weights large enough that whatever is left out shows."""
    name, extra = model_variants.FAMILIES[variant.family]
    config = getattr(transformers, f"{name}Config")(
        **(model_variants.BASE | extra | variant.config)
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    torch.manual_seed(index)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            scale = 1.0 / math.sqrt(parameter.shape[-1]) if parameter.dim() > 1 else 0.2
            parameter.normal_(0.0, scale)
            if parameter_name.endswith("norm.weight"):
                parameter.add_(1.0)
    return model.to(getattr(torch, variant.stored))


def write_model(variant, index, directory, fused):
    model = make_model(variant, index)
    options = {"save_original_format": not fused}
    if variant.files > 1:
        options["max_shard_size"] = sum(p.nbytes for p in model.parameters()) // variant.files
    model.save_pretrained(directory, **options)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    if variant.old_rope:
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope | {"type": rope.pop("rope_type")}
    for field, value in variant.edits.items():
        config.pop(field, None)
        if value is not None:
            config[field] = value
    path.write_text(json.dumps(config))


def tokens(vocab_size):
    i = torch.arange(sum(LENGTHS))
    return ((7 * i * i + 3 * i + 1) % vocab_size).split(LENGTHS)


def balance_loss(model, router_logits):
    config = model.config
    module = sys.modules[type(model).__module__]
    layers = tuple(torch.cat(parts) for parts in zip(*router_logits, strict=True))
    return module.load_balancing_loss_func(
        layers, model.num_experts, config.num_experts_per_tok, None
    )


def expected_outputs(variant, directory):
    """As model_outputs.cc names them, from transformers: each document on its own."""
    dtype = getattr(torch, variant.compute)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="sdpa"
    )
    mixture = "router_aux_loss_coef" in model.config.to_dict()
    logits, routers, loss = [], [], torch.zeros(())
    for document in tokens(model.config.vocab_size):
        # dynamic rope scaling remembers the longest document that it has seen: here is a new model.
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        out = model(document[None], **({"output_router_logits": True} if mixture else {}))
        logits.append(out.logits[0])
        loss = loss + torch.nn.functional.cross_entropy(
            out.logits[0, :-1].float(), document[1:], reduction="sum"
        )
        routers.append(out.router_logits if mixture else ())
    loss = loss / (sum(LENGTHS) - len(LENGTHS))
    if mixture:
        loss = loss + model.config.router_aux_loss_coef * balance_loss(model, routers)
    loss.backward()
    return {"logits": torch.cat(logits), "loss": loss.reshape(1)} | saved_gradients(model)


def saved_gradients(model):
    """Gradients by the names that save_pretrained gives the weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parameter.copy_(gradient)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        return safetensors.torch.load_file(pathlib.Path(scratch) / "model.safetensors")


def norm(x):
    return torch.linalg.vector_norm(x.double()).item()


def largest(x):
    return x.abs().max().item()


def compare(variant, actual, expected):
    """What differs, as text."""
    if actual.keys() != expected.keys():
        return [f"other tensors: {sorted(actual.keys() ^ expected.keys())[:6]}"]
    # A gradient that should be zero may be this much of all of them.
    floor = 1e-3 * math.hypot(*(norm(x) for name, x in expected.items() if name != "logits"))
    problems = []
    for name, want in expected.items():
        limit = (TOLERANCE if name in ("logits", "loss") else GRADIENT_TOLERANCE)[variant.compute]
        size = largest if name == "logits" else norm
        error = size(actual[name].double() - want.double()) / max(size(want.double()), floor)
        if not error <= limit:
            problems.append(f"{name} differs by {error:.1e}, more than {limit:.0e}")
    return problems


def main():
    program, names = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    variants = [v for v in model_variants.all_variants() if not names or v.name in names]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        lines = []
        for index, variant in enumerate(variants):
            write_model(variant, index, scratch / variant.name, variant.fused)
            if variant.fused:  # what transformers loads so it would save so
                write_model(variant, index, scratch / variant.name / "plain", fused=False)
            output = scratch / f"{variant.name}.safetensors"
            lengths = " ".join(map(str, LENGTHS))
            lines.append(
                f"{scratch / variant.name} {output} {variant.compute} "
                f"{int(variant.recompute)} {lengths}\n"
            )
        (scratch / "list").write_text("".join(lines))
        subprocess.run([program, scratch / "list"], check=True)
        for variant in variants:
            problems = compare(
                variant,
                safetensors.torch.load_file(scratch / f"{variant.name}.safetensors"),
                expected_outputs(
                    variant, scratch / variant.name / ("plain" if variant.fused else "")
                ),
            )
            failed += bool(problems)
            for problem in problems[:4]:
                print(f"FAILED: {variant.name}: {problem}", flush=True)
    print(f"{len(variants) - failed} of {len(variants)} models are as in transformers")
    sys.exit(failed > 0 or not variants)


if __name__ == "__main__":
    main()
