#!/usr/bin/env python3
"""Compares greedy completions with transformers.generate, token for token.

    compare_generation.py GENERATE_DRIVER [--all] [--prompts N] [VARIANT ...]

Models are those of tests/worker/model/model_variants.py: --all tries each, else a few of each
family. Each is tried with the whole model gathered and layer by layer, at one rank and two, with
all prompts at once and with a small cache that makes sequences give way and prompts go by chunks,
without an adapter and with one, beside the weights and added to them; at one rank a training
forward scores the same completions. What transformers has no like of, such as quantized matrices,
is compared with that forward alone. GENERATE_DRIVER is the program built from generate_driver.cc.
Needs torch, transformers and PEFT, and tests/worker/model in PYTHONPATH.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

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
# Where the two most likely tokens are this near, in nats, rounding may choose either.
TIE = 2e-5
# Likewise two experts' logits, of the last that a token is given to and the next one.
EXPERT_TIE = 5e-6
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
# Of adapters alone.
MERGED = {
    "merged": {"mode": "gather", "adapters": "merged"},
    "merged_layerwise_2": {"mode": "layerwise", "ranks": 2, "adapters": "merged"},
}


def make_prompts(count, vocab_size):
    draw = random.Random(count)
    return [
        [draw.randrange(vocab_size) for _ in range(draw.randrange(1, LONGEST_PROMPT + 1))]
        for _ in range(count)
    ]


def batches_of(model, prompts):
    """Numbers of prompts that transformers completes at once."""
    numbers = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    if model.config.rope_parameters["rope_type"] != "dynamic":
        return [numbers[begin : begin + 100] for begin in range(0, len(numbers), 100)]
    # It rotates by the longest sequence of a batch: only those of one length go together.
    return [list(of) for _, of in itertools.groupby(numbers, lambda number: len(prompts[number]))]


def forget_lengths(model):
    """dynamic scaling remembers the longest sequence that it has seen."""
    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.__init__(model.config)


def generate(model, prompts):
    """Greedy completions, and log-probabilities of all tokens at each. Batches are padded on the
    left."""
    completions, logprobs = [None] * len(prompts), [None] * len(prompts)
    # Of a window of one its cache would keep all but 0 tokens from the end: all of them.
    use_cache = getattr(model.config, "sliding_window", None) != 1
    for numbers in batches_of(model, prompts):
        forget_lengths(model)
        batch = [prompts[number] for number in numbers]
        width = max(map(len, batch))
        padded = torch.tensor([[0] * (width - len(ids)) + ids for ids in batch])
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in batch])
        out = model.generate(
            input_ids=padded,
            attention_mask=mask,
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            use_cache=use_cache,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        exact = torch.log_softmax(torch.stack(out.logits, dim=1).double(), dim=-1)
        for row, number in enumerate(numbers):
            completions[number] = out.sequences[row, width:].tolist()
            logprobs[number] = exact[row]
    return completions, logprobs


def closest_experts(model, tokens):
    """How near routers come to choosing others; infinite where there is no choice."""
    chosen = getattr(model.config, "num_experts_per_tok", None)
    if chosen is None:
        return math.inf
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_router_logits=True)
    gaps = [math.inf]
    for scores in out.router_logits:
        if scores.shape[-1] > chosen:
            ordered = scores.sort(dim=-1, descending=True).values
            gaps.append((ordered[:, chosen - 1] - ordered[:, chosen]).min().item())
    return min(gaps)


def first_difference(ours, theirs):
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            return i
    return None


def compare(answer, expected, logprobs):
    """(what differs, by prompt; completions that differ behind two tokens of one probability)."""
    problems, ties = {}, 0
    for number, (samples, want) in enumerate(zip(answer["completions"], expected, strict=True)):
        got = samples[0]
        if got["finish"] != "length" or len(got["tokens"]) != NEW_TOKENS:
            problems[number] = f"ends by {got['finish']}"
            continue
        exact = logprobs[number]
        at = first_difference(got["tokens"], want)
        if at is not None:
            gap = (exact[at, want[at]] - exact[at, got["tokens"][at]]).item()
            if not gap <= TIE:
                problems[number] = f"differs at {at} by {gap:.1e}"
            ties += 1
        tokens = torch.tensor(got["tokens"][:at], dtype=torch.long)
        theirs = exact[: len(tokens)].gather(1, tokens[:, None])[:, 0]
        errors = (torch.tensor(got["logprobs"][:at], dtype=torch.double) - theirs).abs()
        if not (errors <= 10 * LOGPROB_TOLERANCE).all():
            problems.setdefault(number, f"a log-probability is off by {errors.max():.1e}")
    if "trained_logprobs" in answer["completions"][0][0]:
        problems = check_logprobs(answer) | problems
    return problems, ties


def check_logprobs(answer):
    """Log-probabilities that are not those of a training forward, by prompt."""
    problems = {}
    for number, (completion,) in enumerate(answer["completions"]):
        for got, trained in zip(
            completion["logprobs"], completion["trained_logprobs"], strict=True
        ):
            if not abs(got - trained) <= LOGPROB_TOLERANCE * max(1, -trained):
                problems.setdefault(number, f"a log-probability {got} is {trained} in training")
    return problems


def check_choices(answer):
    """Tokens that are not the most likely ones of a training forward, by prompt."""
    return {
        number: "a token is not the most likely"
        for number, (completion,) in enumerate(answer["completions"])
        if not all(completion["most_likely"])
    }


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
    for name, setting in (SETTINGS | MERGED if adapter else SETTINGS).items():
        ranks = setting.get("ranks", 1)
        requests = [
            # Ranks have different numbers of sequences, and the second is done first.
            {"prompt": ids, "temperature": 0, "max_new_tokens": NEW_TOKENS}
            | ({"rank": 1} if ranks > 1 and i % 5 == 0 else {})
            for i, ids in enumerate(prompts)
        ]
        job = {"spec": spec, "requests": requests, "score": score and ranks == 1}
        yield name, job | setting


class Driver:
    """The program, which answers one job after the other."""

    def __init__(self, program):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.seconds = 0

    def run(self, job):
        begin = time.monotonic()
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        self.seconds += time.monotonic() - begin
        if not answer:
            sys.exit(f"the driver ended with {self.process.wait()} at {job['spec']}")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit(f"the driver ended with {self.process.returncode}")


class Comparison:
    """Runs and compares, and counts."""

    def __init__(self, driver, num_prompts):
        self.driver = driver
        self.num_prompts = num_prompts
        self.runs = self.failed = self.ties = 0

    def take(self, label, problems, ties=0):
        self.runs += 1
        self.failed += bool(problems)
        self.ties += ties
        for number, problem in list(problems.items())[:4]:
            print(f"FAILED: {label}: prompt {number}: {problem}", flush=True)

    def try_variant(self, variant, index, scratch):
        directory = scratch / "model"
        compare_models.write_model(variant, index, directory, variant.fused)
        plain = directory
        if variant.fused:
            plain = directory / "plain"
            compare_models.write_model(variant, index, plain, fused=False)
        model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
        if hasattr(model.config, "output_router_logits"):
            model.config.output_router_logits = False
        prompts = make_prompts(self.num_prompts, model.config.vocab_size)
        self.try_model(variant.name, model, jobs_of(variant, directory, prompts, None), prompts)
        if variant.name in UNLIKE_MODELS:
            self.try_unlike(variant, directory, prompts)
        adapter = scratch / "adapter"
        model = make_adapter(model, adapter)
        jobs = jobs_of(variant, directory, prompts, adapter)
        self.try_model(f"{variant.name} with LoRA", model, jobs, prompts)

    def try_model(self, name, model, jobs, prompts):
        expected, logprobs = generate(model, prompts)
        nearest = {}  # as far as somebody asked
        for setting, job in jobs:
            answer = self.driver.run(job)
            problems, ties = compare(answer, expected, logprobs)
            # Behind another choice of experts nothing is comparable.
            for number in problems.keys() - nearest.keys():
                nearest[number] = closest_experts(model, prompts[number] + expected[number])
            parted = [number for number in problems if nearest[number] <= EXPERT_TIE]
            for number in parted:
                del problems[number]
            ties += len(parted)
            gives_way = setting.startswith("tight") and not gives_pages_back(model.config)
            if gives_way and answer["counts"]["preemptions"] == 0:
                problems["any"] = "nothing gave way"
            self.take(f"{name}, {setting}", problems, ties)

    def try_unlike(self, variant, directory, prompts):
        for name, fields in UNLIKE.items():
            job = next(jobs_of(variant, directory, prompts, None))[1]
            job["spec"] = job["spec"] | {"peft": fields}
            answer = self.driver.run(job)
            self.take(f"{variant.name} with {name}", check_logprobs(answer) | check_choices(answer))


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
        (index, variant)
        for index, variant in enumerate(model_variants.all_variants())
        if variant.compute == "float32" and (not wanted or variant.name in wanted)
    ]
    driver = Driver(options.driver)
    comparison = Comparison(driver, options.prompts)
    for number, (index, variant) in enumerate(variants, 1):
        begin, before = time.monotonic(), driver.seconds
        with tempfile.TemporaryDirectory() as scratch:
            comparison.try_variant(variant, index, pathlib.Path(scratch))
        print(
            f"{number} of {len(variants)}: {variant.name}: {time.monotonic() - begin:.1f} s, "
            f"{driver.seconds - before:.1f} of them ours",
            flush=True,
        )
    driver.close()
    runs = comparison.runs
    print(
        f"{runs - comparison.failed} of {runs} runs of {len(variants)} models generate what "
        f"transformers does; {comparison.ties} completions part where two tokens, or experts, are "
        "equally likely"
    )
    sys.exit(comparison.failed > 0 or not runs)


if __name__ == "__main__":
    main()
