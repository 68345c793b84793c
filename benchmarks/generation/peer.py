"""transformers.generate and TRL's GRPO, as their users run them.

peer.py generate WORK.json    prints what engine_benchmark.cc prints of the same file
peer.py grpo JOB.json         trains the job that tessera-trainer reads; prints its steps
"""

import json
import os
import pathlib
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Empty: generation is to run on the processor where there is a GPU, too.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def print_event(kind: str, **values) -> None:
    print(json.dumps({kind: values}), flush=True)


def run_generate(work: dict) -> None:
    torch.set_num_threads(work["threads"])
    model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32)
    model.generation_config.eos_token_id = None

    def generate(prompts: torch.Tensor, new_tokens: int) -> list[list[int]]:
        sequences = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return sequences[:, prompts.shape[1] :].tolist()

    for batch in work["batches"]:
        prompts = torch.tensor(work["prompts"][:batch])
        generate(prompts, 2)  # warms up
        begin, cpu_begin = time.perf_counter(), time.process_time()
        tokens = generate(prompts, work["new_tokens"])
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
        print_event(
            "generation", batch=batch, seconds=seconds, cpu_seconds=cpu_seconds, tokens=tokens
        )


def run_grpo(job: dict) -> None:
    import trl
    from datasets import Dataset
    from transformers import TrainerCallback

    torch.set_num_threads(job["resources"]["cpu_threads"])
    training, method = job["training"], job["method"]["grpo"]

    class Report(TrainerCallback):
        begin = 0.0

        def on_step_begin(self, args, state, control, **_):
            self.begin = time.perf_counter()

        def on_step_end(self, args, state, control, **_):
            print_event("step", step=state.global_step, seconds=time.perf_counter() - self.begin)

    def length(completion_ids, **_):
        return [-float(len(ids)) for ids in completion_ids]

    options = trl.GRPOConfig(
        **method,
        output_dir=training["output_dir"],
        max_steps=training["max_steps"],
        per_device_train_batch_size=training["per_device_train_batch_size"],
        learning_rate=training["learning_rate"],
        lr_scheduler_type=training["lr_scheduler_type"],
        max_grad_norm=training["max_grad_norm"],
        gradient_checkpointing=job["memory"]["gradient_checkpointing"],
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    lines = pathlib.Path(job["data"]["train"]).read_text(encoding="utf-8").splitlines()
    model = AutoModelForCausalLM.from_pretrained(job["model"]["path"], dtype=torch.float32)
    trl.GRPOTrainer(
        model=model,
        args=options,
        reward_funcs=length,
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        processing_class=AutoTokenizer.from_pretrained(job["model"]["path"]),
        callbacks=[Report()],
    ).train()


def main() -> None:
    contents = json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))
    if sys.argv[1] == "generate":
        run_generate(contents)
    else:
        run_grpo(contents["spec"])


if __name__ == "__main__":
    main()
