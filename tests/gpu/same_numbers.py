"""Items on numbers: those of TRL, those of a processor, and those without a technique."""

import concurrent.futures
import json
import subprocess

import parity_test
from cases import CASES
from machine import Machine, largest_gap, relative, series
from outcomes import DiffError, Seen

# Families, packing, schedules, adapters and every kind of method.
PARITY_CASES = [
    *("text_padded", "short_packing_bfd", "short_packing_wrapped", "truncate", "random_packing"),
    *("qwen3", "qwen3_packing_bfd", "llama_tied", "llama_bias", "qwen2", "mistral", "qwen3_moe"),
    *("grad_accum_packing", "warmup_cosine_wd", "no_grad_checkpointing", "head_chunks"),
    *("dft", "label_smoothing", "eval_steps", "lora", "lora_dora"),
    *("dpo", "dpo_lora", "kto", "reward", "gkd", "grpo", "rloo", "online_dpo", "ppo"),
]
FEW_CASES = ["short_packing_bfd", "qwen3", "dpo", "grpo"]
AT_ONCE = 4
# Mean over the steps of the relative difference of losses, and the largest.
BFLOAT_MEAN, BFLOAT_LARGEST = 5e-3, 3e-2
EXACT = 1e-6  # of float32 sums in another order
# bfloat16 rounds where float32 does not: of what another context changes, so much may be rounding.
ROUNDING_SHARE = 0.25


def parity_at(machine: Machine, world: int) -> Seen:
    options = machine.options(world)

    def differences(name):
        return parity_test.differences(*parity_test.own_job(name, machine.assets, world), options)

    names = FEW_CASES if machine.small else PARITY_CASES
    at_once = 1 if machine.small else AT_ONCE
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        found = dict(zip(names, pool.map(differences, names), strict=True))
    worst = max(error for _, errors in found.values() for error in errors.values())
    failed = {name: problems for name, (problems, _) in found.items() if problems}
    if failed:
        raise DiffError("; ".join(f"{name}: {problems[0]}" for name, problems in failed.items()))
    figures = {name: errors for name, (_, errors) in found.items()}
    text = f"{len(names)} of {len(CASES)} cases on {world} device(s), all fields"
    return Seen(f"{text}: largest relative error {worst:.1e}", figures)


def parity(machine: Machine) -> Seen:
    """Losses, norms and metrics of each step are TRL's, in float32"""
    return parity_at(machine, 1)


def parity_of_meshes(machine: Machine) -> Seen:
    """The same on two devices"""
    machine.need_devices(2)
    return parity_at(machine, 2)


def bfloat16_curve(machine: Machine) -> Seen:
    """The loss curve of bfloat16 is that of float32 on a processor"""
    steps = 20 if machine.small else 200
    job = {"model": "llama", "train": "mixed", "max_steps": steps}
    on_cpu = {"resources.device": "cpu", "resources.cpu_threads": 1 if machine.small else 0}
    exact = series(machine.train(machine.spec("exact", fields=on_cpu, **job)), "loss")
    ours = series(machine.train(machine.spec("bfloat", dtype="bfloat16", **job)), "loss")
    largest = largest_gap(ours, exact)
    mean = sum(relative(a, b) for a, b in zip(ours, exact, strict=True)) / steps
    if mean > BFLOAT_MEAN or largest > BFLOAT_LARGEST:
        raise DiffError(f"off by {mean:.1e} on average, by {largest:.1e} at most")
    text = f"{steps} steps, {exact[0]:.3f} to {exact[-1]:.3f}: off by {mean:.1e} on average"
    return Seen(text, {"float32": exact, "bfloat16": ours, "mean": mean, "largest": largest})


def first_step(machine: Machine, name: str, texts: list[str], dtype: str, method: dict) -> dict:
    """The step of a batch of all the texts: one packed row, or a row each."""
    data = machine.scratch / f"{name}.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    packed = method.get("packing", False)
    spec = machine.spec(
        name,
        dtype=dtype,
        fields={
            "data.train": str(data),
            "method.sft.max_length": 512,
            **{f"method.sft.{field}": value for field, value in method.items()},
        },
        max_steps=1,
        per_device_train_batch_size=1 if packed else len(texts),
    )
    events = machine.train(spec)
    return next(event["step"] for event in events if "step" in event)


def isolation(machine: Machine) -> Seen:
    """Documents of a packed row do not see each other"""
    lines = (machine.assets / "data/short.jsonl").read_text(encoding="utf-8").splitlines()[:8]
    texts = [json.loads(line)["text"] for line in lines]
    figures = {}
    for dtype in ("float32", "bfloat16"):
        apart = first_step(machine, "apart", texts, dtype, {})
        packed = first_step(machine, "packed", texts, dtype, {"packing": True})
        # One document, whose tokens do see each other: the test can fail.
        seeing = first_step(machine, "seeing", [" ".join(texts)], dtype, {})
        if int(apart["numTokens"]) != int(packed["numTokens"]):
            raise DiffError(f"the rows have {packed['numTokens']} tokens, not {apart['numTokens']}")
        for field in ("loss", "gradNorm"):
            gap = relative(packed[field], apart[field])
            context = relative(seeing[field], apart[field])
            figures[f"{dtype} {field}"] = {"packed": gap, "seeing": context}
            limit = EXACT if dtype == "float32" else ROUNDING_SHARE * context
            if gap > limit or context < 10 * EXACT:
                raise DiffError(
                    f"{dtype} {field}: packed is off by {gap:.1e}, seeing {context:.1e}"
                )
    exact = figures["float32 loss"]
    text = f"float32 loss off by {exact['packed']:.1e}; if they did see: {exact['seeing']:.1e}"
    return Seen(text, figures)


# name: (fields of both, fields of one, relative difference allowed in float32)
KNOBS = {
    "offloaded to host": (
        {"memory.gradient_checkpointing": False},
        {"memory.activation_offloading": True},
        0,
    ),
    "offloaded to disk": (
        {"memory.gradient_checkpointing": False},
        {"memory.activation_offloading": True, "memory.activation_offloading_target": "disk"},
        0,
    ),
    "checkpointing": (
        {"memory.gradient_checkpointing": False},
        {"memory.gradient_checkpointing": True},
        EXACT,
    ),
    "all recomputed": ({}, {"memory.gradient_checkpointing_policy": "full"}, EXACT),
    "head by chunks": ({}, {"memory.head_chunk_tokens": 16}, EXACT),
    "tiles": ({}, {"memory.mlp_tile_tokens": 32}, EXACT),
    "updated in backward": (
        {"training.max_grad_norm": 0},
        {"memory.optimizer_in_backward": True},
        EXACT,
    ),
    "states on host": ({}, {"memory.offload_optimizer_device": "cpu"}, EXACT),
    "weights on host": ({}, {"memory.offload_param_device": "cpu"}, EXACT),
    "bfloat16 states": ({}, {"memory.optimizer_state_dtype": "bfloat16"}, 1e-2),
    "int8 states": ({}, {"memory.optimizer_state_dtype": "int8"}, 1e-2),
}
FEW_KNOBS = ["offloaded to host", "checkpointing", "tiles"]


def knobs(machine: Machine) -> Seen:
    """A technique for memory leaves losses and gradients as they are"""
    gaps, off = {}, []
    job = {"model": "qwen3", "train": "mixed", "max_steps": 4}
    known: dict[str, list[float]] = {}

    def losses(fields):
        spec = machine.spec("knobs", fields=fields, **job)
        events = machine.train(spec)
        return series(events, "loss") + series(events, "gradNorm")

    for name in FEW_KNOBS if machine.small else KNOBS:
        base, fields, limit = KNOBS[name]
        if (key := json.dumps(base)) not in known:
            known[key] = losses(base)
        gaps[name] = largest_gap(losses(base | fields), known[key])
        if gaps[name] > limit:
            off.append(f"{name} by {gaps[name]:.1e}, at most {limit:.0e}")
    if off:
        raise DiffError(f"off: {'; '.join(off)}")
    return Seen(f"{len(gaps)} techniques: off by {max(gaps.values()):.1e} at most", gaps)


def kernels(machine: Machine) -> Seen:
    """Kernels on the device agree with their twins on a processor"""
    machine.need_cuda()
    program = machine.programs / "cuda_kernels_test"
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if "[  FAILED  ]" in line]
    if done.returncode != 0 or "[  PASSED  ]" not in done.stdout:
        raise DiffError(f"it ended with {done.returncode}: {failed or done.stderr[-1000:]}")
    return Seen(done.stdout.strip().splitlines()[-1])
