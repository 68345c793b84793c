#!/usr/bin/env python3
"""Trains the parity cases with TRL and writes what it logs: run_trl.py [--assets DIR] [CASE ...].

Run by hand, in an environment of its own (requirements.txt), when a case is added or TRL is moved;
the results in expected/ are committed. One process, CPU, float32. Without CASE: every case.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import datasets
import peft
import replay
import replay_ppo
import rows
import torch
import transformers
import trl
from adapters import write_adapter
from cases import CASES, EXPECTED
from make_assets import make_assets
from trl.experimental import gkd, online_dpo
from trl.trainer import grpo_trainer, rloo_trainer
from weights import weight_norms

PACKAGES = ["trl", "transformers", "torch", "accelerate", "datasets", "tokenizers", "peft"]
STEP_FIELDS = [
    "step",
    "loss",
    "grad_norm",
    "learning_rate",
    "num_tokens",
    "entropy",
    "mean_token_accuracy",
    "epoch",
    "aux_loss",  # of a mixture of experts
    "kl",
    "logits/chosen",
    "logits/rejected",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "rewards/margins",
    "logps/chosen",
    "logps/rejected",
    "min_reward",
    "mean_reward",
    "max_reward",
    "accuracy",
    "margin",
]
EVAL_FIELDS = ["step", "epoch", *(f"eval_{field}" for field in STEP_FIELDS)]
# TRL counts tokens when they are made, a job when it trains on them.
NOT_OF_ONLINE = ["step_time", "num_tokens"]
# TRL adds these up over what stands behind the end of a completion, too.
WITH_PADDING = [
    "objective/kl",
    "objective/entropy",
    "objective/non_score_reward",
    "objective/rlhf_reward",
]
# Arguments of transformers' EarlyStoppingCallback, which job files hold under `training`.
EARLY_STOPPING = ["early_stopping_patience", "early_stopping_threshold"]


def online_fields(logs, rows):
    left_out = NOT_OF_ONLINE
    if len({len(row["completion_ids"]) for row in rows}) > 1:
        left_out = left_out + WITH_PADDING
    return [field for field in logs if field not in left_out and logs[field] is not None]


def read(assets, name):
    lines = (assets / "data" / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return datasets.Dataset.from_list([json.loads(line) for line in lines if line])


def load_model(case, assets, attention):
    kind = (
        transformers.AutoModelForSequenceClassification
        if case.method == "reward"
        else transformers.AutoModelForCausalLM
    )
    model_dir = assets / "models" / case.model
    options = {"dtype": torch.float32, "attn_implementation": attention}
    model = kind.from_pretrained(model_dir, **options)
    if case.peft:
        with tempfile.TemporaryDirectory() as adapter:
            write_adapter(pathlib.Path(adapter), model_dir, case.peft)
            model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    return model


def load_second(name, assets, attention):
    """A reference or a teacher; none where there is no name."""
    if not name:
        return None
    return transformers.AutoModelForCausalLM.from_pretrained(
        assets / "models" / name, dtype=torch.float32, attn_implementation=attention
    )


def make_trainer(case, assets, attention, output, callbacks, state):
    options, training = case.method_options(), case.training_options()
    if "max_length" in options:
        options["max_length"] = options["max_length"] or None  # TRL's word for no limit
    stopping = {option: training.pop(option) for option in EARLY_STOPPING if option in training}
    if stopping:
        callbacks = [*callbacks, transformers.EarlyStoppingCallback(**stopping)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(assets / "tokenizer")
    if case.is_chat():
        tokenizer.chat_template = (assets / "chat.jinja").read_text(encoding="utf-8")
    config_of, trainer_of, more = {
        "sft": lambda: (trl.SFTConfig, trl.SFTTrainer, {}),
        "reward": lambda: (trl.RewardConfig, trl.RewardTrainer, {}),
        "gkd": lambda: (
            gkd.GKDConfig,
            gkd.GKDTrainer,
            {"teacher_model": load_second(case.teacher, assets, attention)},
        ),
        "dpo": lambda: (
            trl.DPOConfig,
            trl.DPOTrainer,
            {"ref_model": load_second(case.reference, assets, attention)},
        ),
        "kto": lambda: (
            trl.KTOConfig,
            trl.KTOTrainer,
            {"ref_model": load_second(case.reference, assets, attention)},
        ),
        "grpo": lambda: (trl.GRPOConfig, trl.GRPOTrainer, {}),
        "rloo": lambda: (trl.RLOOConfig, trl.RLOOTrainer, {}),
        "online_dpo": lambda: (
            online_dpo.OnlineDPOConfig,
            online_dpo.OnlineDPOTrainer,
            {"ref_model": None},
        ),
    }[case.method]()
    dataset = read(assets, case.data)
    if case.is_online():
        more, records = more | {"reward_funcs": rewards_of(dataset, state)}, list(dataset)
        per_prompt = options.get("num_generations", 2)
        dataset = datasets.Dataset.from_list(replay.prompts_of(records, per_prompt))
        if case.method == "online_dpo":
            options["max_length"] = 512
        else:
            options["shuffle_dataset"] = False
            del training["train_sampling_strategy"]  # it has its own sampler
    if case.method == "gkd":
        options = {"lmbda": 0.0} | options
    config = config_of(
        output_dir=output,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=case.batch,
        per_device_eval_batch_size=case.batch,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
        **({"logging_steps": 1, "save_strategy": "no"} | training),
        **case.memory_options(),
    )
    trainer = trainer_of(
        model=load_model(case, assets, attention),
        args=config,
        train_dataset=dataset,
        eval_dataset=read(assets, case.eval) if case.eval else None,
        processing_class=tokenizer,
        callbacks=callbacks,
        **more,
    )
    if case.is_online():
        replay_with(trainer, case.method, records, state)
    return trainer


def rewards_of(dataset, state):
    return [replay.reward_named(name, state) for name in dataset[0]["rewards"]]


def replay_with(trainer, method, records, state):
    if method == "online_dpo":
        return replay.replay_online_dpo(trainer, records, state)
    generations = replay.Generations(records, trainer.args.generation_batch_size, state)
    if method == "grpo":
        return replay.replay_grpo(trainer, grpo_trainer, generations)
    return replay.replay_rloo(trainer, rloo_trainer, generations)


def prepared_rows(case, trainer):
    """What TRL made of the documents, where it does so before training and packs them."""
    if case.method != "sft":
        return None
    prepared = trainer.train_dataset
    tokens = prepared["input_ids"][:]
    lengths = (
        prepared["seq_lengths"][:]
        if "seq_lengths" in prepared.column_names
        else [[len(t)] for t in tokens]
    )
    return list(zip(tokens, lengths, strict=True))


def train(case, assets, attention):
    class Recorder(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            logs = logs | {"step": state.global_step}
            if replayed.get("losses"):
                logs["loss"] = sum(replayed.pop("losses"))
            if "grad_norm" in logs:
                fields = online_fields(logs, replayed["rows"]) if case.is_online() else STEP_FIELDS
                log["steps"].append({field: logs[field] for field in fields if field in logs})
            elif "eval_loss" in logs:
                log["evals"].append({field: logs[field] for field in EVAL_FIELDS if field in logs})

    log, replayed = {"steps": [], "evals": []}, {}
    with tempfile.TemporaryDirectory() as output:
        trainer = make_trainer(case, assets, attention, output, [Recorder()], replayed)
        trainer.remove_callback(transformers.PrinterCallback)
        prepared = prepared_rows(case, trainer)
        trainer.train()
        trainer.model.save_pretrained(f"{output}/final")
        norms = weight_norms(pathlib.Path(output) / "final")
    return log, rows.describe(prepared) if prepared else None, norms


def train_ppo(case, assets, attention):
    """As train(), and the norms of the value model's final weights."""
    policy = load_model(case, assets, attention)
    if case.peft:  # a job's reference is what the policy begins as
        with tempfile.TemporaryDirectory() as adapter:
            write_adapter(pathlib.Path(adapter), assets / "models" / case.model, case.peft)
            policy.load_adapter(adapter, replay_ppo.REFERENCE)
    reference = load_second(case.reference or ("" if case.peft else case.model), assets, attention)
    records = list(read(assets, case.data))
    steps, norms, of_value = replay_ppo.train(case, assets, (policy, reference), records)
    return {"steps": steps}, None, norms, of_value


def record(name, assets):
    case = CASES[name]
    manifest = json.loads((assets / "manifest.json").read_text())
    run = train_ppo if case.method == "ppo" else train
    log, plan, norms, *of_value = run(case, assets, "sdpa")
    steps = log["steps"]
    # The same sums in another order: how far float32 lets two right programs drift apart.
    other = run(case, assets, "eager")[0]
    pairs = list(zip(steps, other["steps"], strict=True))
    drift = {
        field: max(abs(a[field] - b[field]) / (abs(a[field]) or 1) for a, b in pairs)
        for field in ("loss", "grad_norm")
    }
    used = [
        file
        for file in manifest
        if file.startswith((f"models/{case.model}/", "tokenizer/"))
        or (case.value and file.startswith(f"models/{case.value}/"))
        or file in (f"data/{case.data}.jsonl", f"data/{case.eval}.jsonl")
    ]
    result = {
        "case": name,
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "assets": {file: manifest[file] for file in used},
        "drift": drift,
        "steps": steps,
        **({"evals": log["evals"]} if case.eval else {}),
        **({"rows": plan} if plan else {}),
        "weight_norms": norms,
        **({"value_norms": of_value[0]} if of_value else {}),
    }
    EXPECTED.mkdir(exist_ok=True)
    (EXPECTED / f"{name}.json").write_text(compact(result))
    size = (EXPECTED / f"{name}.json").stat().st_size
    print(
        f"{name}: {len(steps)} steps, "
        f"loss {steps[0]['loss']:.6f} .. {steps[-1]['loss']:.6f}, "
        f"drift {drift['loss']:.1e} {drift['grad_norm']:.1e}, {size} bytes",
        flush=True,
    )


def compact(result):
    """One line a value, one line a step."""
    lines = []
    for key, value in result.items():
        if key in ("steps", "evals"):
            text = "[\n  " + ",\n  ".join(json.dumps(step) for step in value) + "]"
        else:
            text = json.dumps(value)
        lines.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def can_train(case):
    """PPO needs an older TRL: see replay_ppo.py."""
    return not case.same_as and (case.method == "ppo") == replay_ppo.can_train()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument(
        "--assets", type=pathlib.Path, help="directory that make_assets.py wrote; made if not given"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        assets = options.assets or pathlib.Path(scratch)
        if not options.assets:
            make_assets(assets)
        for name in options.cases or [name for name, case in CASES.items() if can_train(case)]:
            record(name, assets)


if __name__ == "__main__":
    main()
