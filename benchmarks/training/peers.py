"""What the trainer is compared with, each as its users run it.

    peers.py trl JOB.json                                  TRL's trainer of the method, one process
    torchrun --nproc-per-node N peers.py fully_shard JOB.json    PyTorch's FSDP2 over Gloo, or NCCL

Reads the job that tessera-trainer reads, and runs on its resources.device. Prints step events, then
one of memory, a line each; memory is the process's on a CPU, and what torch held of a GPU.
"""

import json
import os
import pathlib
import resource
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
JOB = json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))["spec"]
DEVICE = JOB["resources"]["device"]
# Empty: TRL's loop is to run on the processor where there is a GPU, too.
if DEVICE == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402


def resident_bytes() -> int:
    fields = pathlib.Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def print_event(kind: str, **values: float) -> None:
    print(json.dumps({kind: values}), flush=True)


def print_memory(imported_bytes: int) -> None:
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if DEVICE == "cuda":
        imported_bytes, peak_bytes = 0, torch.cuda.max_memory_allocated()
    print_event("memory", importedBytes=imported_bytes, peakBytes=peak_bytes)


def make_model(job: dict, dtype: str = "") -> torch.nn.Module:
    """In the job's dtype, unless another is given."""
    return AutoModelForCausalLM.from_pretrained(
        job["model"]["path"], dtype=getattr(torch, dtype or job["model"]["dtype"])
    ).to(DEVICE)


def run_trl(job: dict) -> None:
    import trl
    from datasets import Dataset
    from transformers import TrainerCallback

    imported_bytes = resident_bytes()
    training = job["training"]
    ((kind, method),) = job["method"].items()
    base = {"sft": trl.SFTTrainer, "dpo": trl.DPOTrainer, "kto": trl.KTOTrainer}[kind]
    config = {"sft": trl.SFTConfig, "dpo": trl.DPOConfig, "kto": trl.KTOConfig}[kind]
    lines = pathlib.Path(job["data"]["train"]).read_text(encoding="utf-8").splitlines()
    useful_tokens = 0

    class Trainer(base):
        def training_step(self, model, inputs, *arguments, **keywords):
            nonlocal useful_tokens
            mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
            useful_tokens += int(mask.sum())
            return super().training_step(model, inputs, *arguments, **keywords)

    class Report(TrainerCallback):
        begin = 0.0

        def on_step_begin(self, args, state, control, **_):
            self.begin = time.perf_counter()

        def on_log(self, args, state, control, logs=None, **_):
            nonlocal useful_tokens
            if logs and "loss" in logs:
                speed = useful_tokens / (time.perf_counter() - self.begin)
                useful_tokens = 0
                print_event(
                    "step", step=state.global_step, loss=logs["loss"], tokensPerSecond=speed
                )

    # A padding-free batch is one row to attention on a CPU, which has no kernel for documents: rows
    # packed with bfd are fastest one at a time, as many a step by accumulation.
    rows = training["per_device_train_batch_size"]
    packed = method.get("packing", False) and method["packing_strategy"] == "bfd"
    options = config(
        **method,
        output_dir=training["output_dir"],
        max_steps=training["max_steps"],
        per_device_train_batch_size=1 if packed else rows,
        gradient_accumulation_steps=rows if packed else 1,
        learning_rate=training["learning_rate"],
        lr_scheduler_type=training["lr_scheduler_type"],
        max_grad_norm=training["max_grad_norm"],
        gradient_checkpointing=job["memory"]["gradient_checkpointing"],
        train_sampling_strategy="sequential",
        bf16=job["model"]["dtype"] == "bfloat16",
        use_cpu=DEVICE == "cpu",
        dataloader_pin_memory=DEVICE != "cpu",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(
        model=make_model(job),
        args=options,
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        processing_class=AutoTokenizer.from_pretrained(job["model"]["path"]),
        callbacks=[Report()],
    ).train()
    print_memory(imported_bytes)


def full_rows(job: dict, count: int) -> torch.Tensor:
    """The first rows of `wrapped` packing."""
    tokenizer = AutoTokenizer.from_pretrained(job["model"]["path"])
    length = job["method"]["sft"]["max_length"]
    stream = []
    for line in pathlib.Path(job["data"]["train"]).read_text(encoding="utf-8").splitlines():
        stream += [*tokenizer(json.loads(line)["text"])["input_ids"], tokenizer.eos_token_id]
    return torch.tensor(stream[: count * length]).view(count, length)


def run_fully_shard(job: dict) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    imported_bytes = resident_bytes()
    training = job["training"]
    dist.init_process_group("gloo" if DEVICE == "cpu" else "nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)
    # On a GPU as the trainer: float32 weights and states, and a compute in the job's dtype.
    options = {}
    if DEVICE == "cuda":
        dtype = getattr(torch, job["model"]["dtype"])
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    model = make_model(job, "float32" if DEVICE == "cuda" else "")
    if job["memory"]["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    mesh = init_device_mesh(DEVICE, (world_size,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, **options)
    fully_shard(model, mesh=mesh, reshard_after_forward=True, **options)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training["learning_rate"], weight_decay=0.0
    )
    rows = training["per_device_train_batch_size"]
    all_rows = full_rows(job, training["max_steps"] * rows * world_size).to(DEVICE)
    begin = time.perf_counter()
    for step in range(training["max_steps"]):
        first = (step * world_size + rank) * rows
        ids = all_rows[first : first + rows]
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean_loss = loss.detach() / world_size
        dist.all_reduce(mean_loss)
        mean_loss = mean_loss.item()  # waits for the device
        now = time.perf_counter()
        if rank == 0:
            speed = ids.numel() * world_size / (now - begin)
            print_event("step", step=step + 1, loss=mean_loss, tokensPerSecond=speed)
        begin = now
    if rank == 0:
        print_memory(imported_bytes)
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(JOB["resources"]["cpu_threads"])
    {"trl": run_trl, "fully_shard": run_fully_shard}[sys.argv[1]](JOB)


if __name__ == "__main__":
    main()
