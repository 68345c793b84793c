#!/usr/bin/env python3
"""Compares greedy completions with transformers.generate, token for token.

    compare_generation.py GENERATE_DRIVER [--all] [--prompts N] [VARIANT ...]

Models are those of tests/worker/model/model_variants.py: --all tries each, else a few of each
family. Each is tried with the whole model gathered and layer by layer, at one rank and two, with
all prompts at once and with a small cache that makes sequences give way and prompts go by chunks;
at one rank a training forward scores the same completions. What transformers has no like of, such
as quantized matrices, is compared with that forward alone. GENERATE_DRIVER is the program built
from generate_driver.cc. Needs torch, transformers and PEFT, and tests/worker/model in PYTHONPATH.
"""

import argparse
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import compare_models
import model_variants
import peft
import torch
import transformers

NEW_TOKENS = 20
LONGEST_PROMPT = 45
PAGE_TOKENS = 16
LOGPROB_TOLERANCE = 1e-5
# Where the two most likely tokens are this near, rounding may choose either.
TIE = 2e-5
FEW = [
    "llama_attention_bias",
    "llama_llama3",
    "llama_dynamic",
    "mistral_yarn",
    "mistral_window",
    "qwen2_window_from_0",
    "qwen3_tied",
    "qwen3_moe_sparse_step",
    "mixtral_window",
]
# Compared with a training forward, on these models.
UNLIKE = {
    "nf4": {"lora_r": 4, "quantization": "nf4"},
    "int8": {"lora_r": 4, "quantization": "int8"},
    "dora": {"lora_r": 4, "use_dora": True},
}
UNLIKE_MODELS = ["llama_attention_bias", "qwen3_moe_sparse_step"]
# A layout of the engine: name, and fields of a job.
SETTINGS = {
    "gather": {"mode": "gather"},
    "layerwise": {"mode": "layerwise"},
    "gather_2": {"mode": "gather", "ranks": 2},
    "layerwise_2": {"mode": "layerwise", "ranks": 2},
    # Prompts in chunks beside decoding, and pages for a few sequences at a time.
    "tight": {"mode": "gather", "pages": 11, "pass_tokens": 23, "running": 9},
    "tight_layerwise_2": {
        "mode": "layerwise",
        "ranks": 2,
        "pages": 9,
        "pass_tokens": 30,
        "running": 6,
    },
}


def make_prompts(count, vocab_size):
    draw = random.Random(count)
    return [
        [draw.randrange(vocab_size) for _ in range(draw.randrange(1, LONGEST_PROMPT + 1))]
        for _ in range(count)
    ]


def generate(model, prompts):
    """Greedy completions, and the logits of each token. Batches are padded on the left."""
    # It remembers the longest sequence that it has seen, and others of a batch: one by one.
    alone = model.config.rope_parameters["rope_type"] == "dynamic"
    step = 1 if alone else 25
    completions, logits = [], []
    for begin in range(0, len(prompts), step):
        batch = prompts[begin : begin + step]
        width = max(map(len, batch))
        padded = torch.tensor([[0] * (width - len(ids)) + ids for ids in batch])
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in batch])
        if alone:
            for module in model.modules():
                if type(module).__name__.endswith("RotaryEmbedding"):
                    module.__init__(model.config)
        out = model.generate(
            input_ids=padded,
            attention_mask=mask,
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        completions += out.sequences[:, width:].tolist()
        logits += torch.stack(out.logits, dim=1).float().unbind(0)
    return completions, logits


def first_difference(ours, theirs):
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            return i
    return None


def compare(setting, answer, expected, logits):
    """(what differs, completions that differ behind two tokens of one probability)."""
    problems, ties = [], 0
    for number, (samples, want) in enumerate(zip(answer["completions"], expected, strict=True)):
        got = samples[0]
        if got["finish"] != "length" or len(got["tokens"]) != NEW_TOKENS:
            problems.append(f"{setting}: prompt {number} ends by {got['finish']}")
            continue
        at = first_difference(got["tokens"], want)
        if at is not None:
            row = logits[number][at].double()
            gap = (row[want[at]] - row[got["tokens"][at]]).item()
            if gap > TIE * row.abs().max().item():
                problems.append(f"{setting}: prompt {number} differs at {at} by {gap:.1e}")
            ties += 1
        exact = torch.log_softmax(logits[number].double(), dim=-1)
        for i, token in enumerate(got["tokens"][:at]):
            error = abs(got["logprobs"][i] - exact[i, token].item())
            if not error <= 10 * LOGPROB_TOLERANCE:
                problems.append(f"{setting}: log-probability {i} of {number} is off by {error:.1e}")
    if "trained_logprobs" in answer["completions"][0][0]:
        problems += check_logprobs(setting, answer)
    return problems, ties


def check_logprobs(setting, answer):
    """Log-probabilities that are not those of a training forward."""
    problems = []
    for number, (completion,) in enumerate(answer["completions"]):
        for got, trained in zip(
            completion["logprobs"], completion["trained_logprobs"], strict=True
        ):
            if not abs(got - trained) <= LOGPROB_TOLERANCE * max(1, -trained):
                problems.append(f"{setting}: prompt {number}: {got} != {trained}")
    return problems


def check_choices(setting, answer):
    """Tokens that are not the most likely ones of a training forward."""
    return [
        f"{setting}: prompt {number} has a token that is not the most likely"
        for number, (completion,) in enumerate(answer["completions"])
        if not all(completion["most_likely"])
    ]


def gives_pages_back(config):
    """Whether all layers have windows, which the longest sequences outgrow by a page: pages behind
    them are used again, and may be enough."""
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    window = getattr(config, "sliding_window", None) or math.inf
    longest = LONGEST_PROMPT + NEW_TOKENS
    return kinds == {"sliding_attention"} and window + PAGE_TOKENS <= longest


def make_adapter(model, directory):
    torch.manual_seed(5)
    config = peft.LoraConfig(
        r=3,
        lora_alpha=7,
        target_modules=["q_proj", "v_proj", "o_proj"],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(directory)
    return adapted


def jobs_of(variant, directory, prompts, adapter):
    spec = {"model": {"path": str(directory), "dtype": "float32"}}
    if adapter:
        spec["peft"] = {"adapter_path": str(adapter)}
    # A training forward gives whole documents the dynamic table of their whole length.
    score = "dynamic" not in variant.name
    for name, setting in SETTINGS.items():
        ranks = setting.get("ranks", 1)
        requests = [
            # Ranks have different numbers of sequences, and the second is done first.
            {"prompt": ids, "temperature": 0, "max_new_tokens": NEW_TOKENS}
            | ({"rank": 1} if ranks > 1 and i % 5 == 0 else {})
            for i, ids in enumerate(prompts)
        ]
        job = {"spec": spec, "requests": requests, "score": score and ranks == 1}
        yield name, job | setting


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("variants", nargs="*")
    options = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    wanted = options.variants or ([] if options.all else FEW)
    variants = [
        variant
        for variant in model_variants.all_variants()
        if variant.compute == "float32" and (not wanted or variant.name in wanted)
    ]
    failed, ties, lines, expectations = 0, 0, [], []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for index, variant in enumerate(variants):
            directory = scratch / variant.name
            compare_models.write_model(variant, index, directory, variant.fused)
            plain = directory
            if variant.fused:
                plain = directory / "plain"
                compare_models.write_model(variant, index, plain, fused=False)
            model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
            if hasattr(model.config, "output_router_logits"):
                model.config.output_router_logits = False
            prompts = make_prompts(options.prompts, model.config.vocab_size)
            for adapted in (False, True):
                if adapted:
                    model = make_adapter(model, scratch / f"{variant.name}_adapter")
                expected = generate(model, prompts)
                adapter = scratch / f"{variant.name}_adapter" if adapted else None
                for name, job in jobs_of(variant, directory, prompts, adapter):
                    lines.append(json.dumps(job) + "\n")
                    label = f"{variant.name}{' with LoRA' if adapted else ''}, {name}"
                    gives_way = name.startswith("tight") and not gives_pages_back(model.config)
                    expectations.append((label, gives_way, *expected))
            for name, fields in UNLIKE.items() if variant.name in UNLIKE_MODELS else ():
                job = next(jobs_of(variant, directory, prompts, None))[1]
                job["spec"] = job["spec"] | {"peft": fields}
                lines.append(json.dumps(job) + "\n")
                expectations.append((f"{variant.name} with {name}", False, None, None))
        (scratch / "jobs").write_text("".join(lines))
        out = subprocess.run(
            [options.driver, scratch / "jobs"], check=True, stdout=subprocess.PIPE, text=True
        )
    answers = [json.loads(line) for line in out.stdout.splitlines()]
    for answer, (label, gives_way, expected, logits) in zip(answers, expectations, strict=True):
        if expected is None:
            problems, tied = check_logprobs(label, answer) + check_choices(label, answer), 0
        else:
            problems, tied = compare(label, answer, expected, logits)
        if gives_way and answer["counts"]["preemptions"] == 0:
            problems.append(f"{label}: nothing gave way")
        failed += bool(problems)
        ties += tied
        for problem in problems[:4]:
            print(f"FAILED: {problem}", flush=True)
    print(
        f"{len(answers) - failed} of {len(answers)} runs of {len(variants)} models generate what "
        f"transformers does; {ties} completions part where two tokens are equally likely"
    )
    sys.exit(failed > 0 or not answers)


if __name__ == "__main__":
    main()
