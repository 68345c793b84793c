"""What the trainer is compared with: a plain transformers training loop, or TRL's SFTTrainer.

    loop.py {transformers|trl} JOB.json

Reads the same input as tessera-trainer, as far as a benchmark uses it. Prints a step event a line.
"""

import json
import pathlib
import sys
import time
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

EOS = "<|im_end|>"
IGNORED = -100


def read_rows(job: dict) -> list[list[int]]:
    """Token rows as the job's packing makes them: documents cut to max_length, or full rows."""
    tokenizer = Tokenizer.from_file(job["model"]["path"] + "/tokenizer.json")
    lines = pathlib.Path(job["data"]["train"]).read_text(encoding="utf-8").splitlines()
    eos = tokenizer.token_to_id(EOS)
    encoded = tokenizer.encode_batch([json.loads(line)["text"] for line in lines])
    documents = [[*encoding.ids, eos] for encoding in encoded]
    sft = job["method"]["sft"]
    length = sft["max_length"]
    if not sft["packing"]:
        return [document[:length] for document in documents]
    if sft["packing_strategy"] != "wrapped":
        raise ValueError("a padded loop can compare with wrapped packing only")
    stream = [token for document in documents for token in document]
    return [stream[begin : begin + length] for begin in range(0, len(stream), length)]


def batches(rows: list[list[int]], size: int, steps: int) -> Iterator[dict[str, torch.Tensor]]:
    for step in range(steps):
        chosen = rows[step * size : (step + 1) * size]
        width = max(map(len, chosen))
        ids = torch.zeros(len(chosen), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(chosen):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        labels = ids.masked_fill(mask == 0, IGNORED)
        # A loop that knows its rows are whole leaves the mask out: attention is faster without.
        yield {"input_ids": ids, "labels": labels} | (
            {} if mask.all() else {"attention_mask": mask}
        )


def print_step(step: int, loss: float, num_tokens: int, seconds: float) -> None:
    event = {"step": step, "loss": loss, "tokensPerSecond": num_tokens / seconds}
    print(json.dumps({"step": event}), flush=True)


def make_model(job: dict) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(
        job["model"]["path"], dtype=getattr(torch, job["model"]["dtype"])
    )
    model.train()
    return model


def run_transformers(job: dict) -> None:
    training = job["training"]
    model = make_model(job)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training["learning_rate"], weight_decay=0.0, fused=True
    )
    rows = read_rows(job)
    size = training["per_device_train_batch_size"]
    begin = time.perf_counter()
    for step, batch in enumerate(batches(rows, size, training["max_steps"]), 1):
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        print_step(
            step, loss.item(), sum(map(len, rows[(step - 1) * size : step * size])), now - begin
        )
        begin = now


def run_trl(job: dict) -> None:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    training = job["training"]
    rows = read_rows(job)
    size = training["per_device_train_batch_size"]

    class Report(TrainerCallback):
        begin = 0.0

        def on_step_begin(self, args, state, control, **_):
            self.begin = time.perf_counter()

        def on_log(self, args, state, control, logs=None, **_):
            if logs and "loss" in logs:
                step = state.global_step
                num_tokens = sum(map(len, rows[(step - 1) * size : step * size]))
                print_step(step, logs["loss"], num_tokens, time.perf_counter() - self.begin)

    config = SFTConfig(
        output_dir=training["output_dir"],
        max_length=None,
        max_steps=training["max_steps"],
        per_device_train_batch_size=size,
        learning_rate=training["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=training["max_grad_norm"],
        gradient_checkpointing=True,
        shuffle_dataset=False,
        train_sampling_strategy="sequential",
        bf16=job["model"]["dtype"] == "bfloat16",
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(job["model"]["path"])
    SFTTrainer(
        model=make_model(job),
        args=config,
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        processing_class=tokenizer,
        callbacks=[Report()],
    ).train()


def main() -> None:
    job = json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))["spec"]
    torch.set_num_threads(job["resources"]["cpu_threads"])
    {"transformers": run_transformers, "trl": run_trl}[sys.argv[1]](job)


if __name__ == "__main__":
    main()
