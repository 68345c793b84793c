"""Items on speed: against what the device can do, and against a Python peer in the same run."""

import functools
import json
import os
import random
import statistics
import subprocess
import sys

import shapes
import traces
import trials
from machine import ROOT, Machine, relative, series
from outcomes import DiffError, Seen
from trainer_inputs import free_port, write_inputs

PEERS = ROOT / "benchmarks/training/peers.py"
STEPS, WARMUP_STEPS = 8, 3
# A first step's losses of bfloat16 in another order of sums.
SAME_LOSS = 2e-2
# What the issue of speed aims at; what comes out is told, and fails nothing.
AIMS = {"mfu": 0.55, "of_peer": 1.2, "decode_over_limit": 1.3}
REHEARSED = 0.01
LEAST_HIDDEN = 0.5


@functools.cache
def limits(device: str, small: bool) -> dict:
    """What the device can do (limits.py), in a process of its own: memory is given back."""
    command = [sys.executable, "-B", str(ROOT / "tests/gpu/limits.py"), device]
    if small:
        command.append("--small")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def overlap(machine: Machine) -> Seen:
    """Offloaded activations leave and return beside compute"""
    shape = machine.shape(shapes.MEDIUM, shapes.TINY)
    spec = machine.shaped_spec(
        "overlap",
        shape,
        dtype="bfloat16",
        max_steps=3,
        profile_steps=[3],
        fields={
            "method.sft.max_length": 64 if machine.small else 4096,
            "memory.activation_offloading": True,
        },
    )
    machine.train(spec)
    trace = traces.read(machine.scratch / "overlap/traces/step-3-rank-0.json")
    machine.need_cuda()
    share, microseconds = traces.hidden_share(trace)
    figures = {"hidden_share": share, "copies_us": microseconds}
    if not microseconds:
        raise DiffError("the trace shows no copies")
    if share < LEAST_HIDDEN:
        raise DiffError(f"{share:.0%} of {microseconds:.0f} us of copies were beside a kernel")
    return Seen(f"{share:.0%} of {microseconds:.0f} us of copies were beside a kernel", figures)


def decode(machine: Machine) -> Seen:
    """Tokens are made at the rate at which memory gives the weights"""
    shape = machine.shape(shapes.LLAMA_1B, shapes.TINY)
    machine.shaped_spec("decode", shape)  # writes the model
    draw = random.Random(0)
    work = {
        "model": str(machine.scratch / "models" / shape.name),
        "prompts": [[draw.randrange(3, 800) for _ in range(32)] for _ in range(8)],
        "batches": [1, 8],
        "new_tokens": 16 if machine.small else 128,
        "threads": 1,
        "device": "cuda:0" if machine.device == "cuda" else "cpu",
        "dtype": "float32" if machine.device == "cpu" else "bfloat16",
    }
    path = machine.scratch / "decode.json"
    path.write_text(json.dumps(work))
    program = machine.programs / "engine_benchmark"
    done = subprocess.run([program, path], capture_output=True, text=True, check=True)
    made = [json.loads(line)["generation"] for line in done.stdout.splitlines()]
    rates = {g["batch"]: sum(map(len, g["tokens"])) / g["seconds"] for g in made}
    bytes_a_token = shape.weights * (4 if work["dtype"] == "float32" else 2)
    limit = limits(machine.device, machine.small)["copy_bytes"] / bytes_a_token
    figures = {"rates": rates, "limit": limit, "aim": AIMS["decode_over_limit"]}
    text = ", ".join(f"{rate:.0f} tokens/s at batch {batch}" for batch, rate in rates.items())
    over = limit / rates[1]
    return Seen(f"{text}; memory allows {limit:.0f} at batch 1, {over:.2f} times as many", figures)


def peer(machine: Machine, spec: dict) -> dict:
    """The events of PyTorch's fully_shard in a plain loop, eager, on the same job."""
    (path,) = write_inputs(spec, 1, machine.scratch, job_id="bench")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"]
    command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, str(PEERS), "fully_shard", str(path)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    steps = [event["step"] for event in events if "step" in event]
    memory = next(event["memory"] for event in events if "memory" in event)
    return {
        "losses": [step["loss"] for step in steps],
        "rate": rate_of([step["tokensPerSecond"] for step in steps]),
        "peak": memory["peakBytes"] - memory["importedBytes"],
    }


def rate_of(rates: list[float]) -> float:
    return statistics.median(rates[WARMUP_STEPS:])


def trained(machine: Machine, shape: shapes.Shape, row: int, rows: int, **fields) -> tuple:
    """The spec of full rows, its events, and figures: rate, MFU and peak against a rehearsal."""
    frozen = any(name.startswith("peft.") for name in fields)
    spec = machine.shaped_spec(
        f"speed-{shape.name}",
        shape,
        dtype="float32" if machine.device == "cpu" else "bfloat16",
        max_steps=STEPS,
        per_device_train_batch_size=rows,
        lr_scheduler_type="constant",
        learning_rate=1e-5,
        max_grad_norm=1.0,
        shuffle_dataset=False,
        fields={
            "method.sft.max_length": row,
            "memory.gradient_checkpointing": frozen or row * rows > 1 << 14,
            **fields,
        },
    )
    rehearsed = int(trials.rehearse(machine.options(), spec, machine.scratch)["peakBytes"])
    events = machine.train(spec)
    peak = int(trials.last_memory(events)["peakBytes"])
    rate = rate_of(series(events, "tokensPerSecond"))
    flops = rate * shape.train_flops(row, frozen=frozen)
    figures = {
        "tokens_per_second": rate,
        "flops": flops,
        "mfu_of_gemm": flops / limits(machine.device, machine.small)["gemm_flops"],
        "peak": peak,
        "rehearsed": rehearsed,
        "rehearsal_is_off_by": relative(rehearsed, peak),
        "aims": AIMS | {"rehearsal_is_off_by": REHEARSED},
    }
    return spec, events, figures


def told(figures: dict) -> str:
    return (
        f"{figures['tokens_per_second']:.0f} tokens/s, {figures['flops'] / 1e12:.3g} TFLOP/s,"
        f" {figures['mfu_of_gemm']:.0%} of a matrix product's rate;"
        f" rehearsed peak off by {figures['rehearsal_is_off_by']:.2%}"
    )


def training(machine: Machine) -> Seen:
    """Training a 1B Llama on full rows of 4,096 tokens, against FSDP2"""
    shape = machine.shape(shapes.LLAMA_1B, shapes.TINY)
    row, rows = (64, 2) if machine.small else (4096, 2)
    spec, events, figures = trained(machine, shape, row, rows)
    theirs = peer(machine, spec)
    gap = relative(series(events, "loss")[0], theirs["losses"][0])
    figures |= {"peer": theirs, "of_peer": figures["tokens_per_second"] / theirs["rate"]}
    if gap > SAME_LOSS:
        raise DiffError(f"the peer's first loss is off by {gap:.1e}: other work")
    text = f"{told(figures)}; {figures['of_peer']:.2f} times FSDP2's {theirs['rate']:.0f} tokens/s"
    if machine.device == "cuda":  # else the peer's is that of its process
        figures["memory_of_peer"] = figures["peak"] / theirs["peak"]
        text += f" at {figures['memory_of_peer']:.2f} of its memory"
    return Seen(text, figures)


def training_adapters(machine: Machine) -> Seen:
    """Training LoRA on an 8B Llama, rows of 4,096 tokens"""
    machine.need_cuda()
    _, _, figures = trained(
        machine, shapes.LLAMA_8B, 4096, 1, **{"peft.lora_r": 16, "peft.lora_dropout": 0.0}
    )
    return Seen(told(figures), figures)
