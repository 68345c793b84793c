"""Writes fixtures/formats.json: what TRL makes of format_cases.py and preference_cases.py.

Run by hand, in an environment with TRL (tests/parity/requirements.txt), when a case changes.

    python record_formats.py [CASE ...]    # the others stay as they are

A row of SFT is [ids, mask]; of the others a list of documents, [ids, mask, value or null]. A case
that has mismatched rows is {"rows": ..., "mismatched": ...}.
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import datasets
import format_cases
import transformers
import trl
from preference_cases import PREFERENCES
from trl.experimental.utils import DataCollatorForChatML


def make_model(tokenizer, kind=transformers.LlamaForCausalLM, **more):
    return kind(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            pad_token_id=tokenizer.pad_token_id,
            **more,
        )
    )


def make_trainer(trainer, config, case, folder, tokenizer, records, model, **models):
    args = config(
        output_dir=str(folder / "out"),
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
        **format_cases.options(case, folder),
    )
    return trainer(
        model=model, args=args, train_dataset=records, processing_class=tokenizer, **models
    )


def documents(batch, value_of, prefix="", mask="completion_mask"):
    """Of a collated batch, without its padding."""
    lengths = batch[prefix + "attention_mask"].sum(1).tolist()
    ids = batch[prefix + "input_ids"].tolist()
    masks = batch[prefix + mask].tolist()
    return [[ids[i][:length], masks[i][:length], value_of(i)] for i, length in enumerate(lengths)]


def no_value(_):
    return None


def sft_rows(trainer):
    return [
        [row["input_ids"], [int(label != -100) for label in row["labels"]]]
        for row in trainer.train_dataset
    ]


def dpo_rows(trainer):
    return [documents(trainer.data_collator([row]), no_value) for row in trainer.train_dataset]


def kto_rows(trainer):
    rows, mismatched = [], []
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        label = float(batch["label"].item())
        rows.append(documents(batch, lambda _, label=label: label))
        if "KL_input_ids" in batch:
            mismatched.append(documents(batch, no_value, "KL_"))
    return {"rows": rows, "mismatched": mismatched} if mismatched else rows


def reward_rows(trainer):
    rows = []
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        margin = batch["margin"].item() if "margin" in batch else None
        rows.append(documents(batch, lambda _, margin=margin: margin, mask="attention_mask"))
    return rows


def gkd_rows(case, folder, tokenizer, records):
    collator = DataCollatorForChatML(
        tokenizer=tokenizer, max_length=format_cases.options(case, folder)["max_length"]
    )
    rows = []
    for record in records:
        # datasets fills in what a record lacks.
        given = {name: value for name, value in record.items() if value is not None}
        try:
            batch = collator([given])
        except ValueError as error:  # the engine leaves such a record out
            assert "no prompt tokens left" in str(error)
            continue
        batch["completion_mask"] = (batch["labels"] != -100).int()
        rows.append(documents(batch, no_value))
    return rows


def prepare(case, folder):
    path = format_cases.write(case, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    records = datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(folder / "cache")
    )
    given = (case, folder, tokenizer, records)
    if case.trainer == "gkd":
        return gkd_rows(*given)
    if case.trainer == "reward":
        model = make_model(tokenizer, transformers.LlamaForSequenceClassification, num_labels=1)
        return reward_rows(make_trainer(trl.RewardTrainer, trl.RewardConfig, *given, model))
    model = make_model(tokenizer)
    if case.trainer == "sft":
        return sft_rows(make_trainer(trl.SFTTrainer, trl.SFTConfig, *given, model))
    reference = make_model(tokenizer)
    if case.trainer == "dpo":
        return dpo_rows(
            make_trainer(trl.DPOTrainer, trl.DPOConfig, *given, model, ref_model=reference)
        )
    case.fields["train_sampling_strategy"] = "sequential"
    return kto_rows(make_trainer(trl.KTOTrainer, trl.KTOConfig, *given, model, ref_model=reference))


def write(path, recorded):
    lines = [
        f"{json.dumps(name)}: {json.dumps(rows, separators=(',', ':'))}"
        for name, rows in recorded.items()
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main():
    path = format_cases.FIXTURES / "formats.json"
    cases = {**format_cases.FORMATS, **PREFERENCES}
    names = sys.argv[1:] or list(cases)
    recorded = json.loads(path.read_text(encoding="utf-8"))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            rows = prepare(cases[name], pathlib.Path(folder))
        assert rows, name
        recorded[name] = rows
        print(f"{name}: {len(rows)} rows", flush=True)
        write(path, {name: recorded[name] for name in cases if name in recorded})


if __name__ == "__main__":
    main()
