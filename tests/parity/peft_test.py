#!/usr/bin/env python3
"""Adapter directories against PEFT itself: peft_test.py --trainer PATH --assets DIR.

What a job writes is loaded by PEFT and has the loss that the job's last evaluation had; PEFT's own
directory is gone on from; merged models load with transformers; checkpoints hold adapters only,
export them and are resumed bit for bit; a model larger than the device's memory trains on 4 bits.
"""

import json
import os
import pathlib
import subprocess
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import peft
import ranks
import torch
import transformers
import trials
from models import MIXTURES
from trials import Trials, expect, final_directory, steps_of
from weights import read_safetensors, relative_error

TOLERANCE = 1e-5
STEPS = 4
MAX_LENGTH = 64
EXPERTS = ["v_proj", "w1", "w2", "w3"]


def make_spec(options, world, output, model, adapters, **training):
    training = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 12 // world,
        "per_device_eval_batch_size": 12 // world,
        "learning_rate": 5e-3,
        "save_strategy": "no",
    } | training
    fields = {
        "data.eval": str(options.assets / "data" / "short.jsonl"),
        "data.cache_dir": str(output.parent / "cache"),
        "peft": {"lora_r": 4, "lora_dropout": 0.0} | adapters,
    }
    if model in MIXTURES:
        # A loss with the balance of experts would be another.
        fields["method.sft.router_aux_loss_coef"] = 0
    return trials.make_spec(
        options, output, world, model=model, train="few", fields=fields, **training
    )


def train(options, spec):
    """(rank 0's events, the final directory)."""
    events = trials.train(options, spec)
    return events, final_directory(events)


def last_loss(events):
    return [event["eval"]["loss"] for event in events if "eval" in event][-1]


def loss_of(model, assets, batch=12):
    """Of the held-out documents, counted as TRL counts them: batches by their rows."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(assets / "tokenizer")
    lines = (assets / "data" / "short.jsonl").read_text(encoding="utf-8").split("\n")
    documents = [
        tokenizer(json.loads(line)["text"])["input_ids"] + [tokenizer.eos_token_id]
        for line in lines
        if line
    ]
    documents = [ids[:MAX_LENGTH] for ids in documents]
    total = 0.0
    model.eval()
    with torch.no_grad():
        for begin in range(0, len(documents), batch):
            rows = documents[begin : begin + batch]
            losses, labels = 0.0, 0
            for ids in rows:
                tokens = torch.tensor([ids])
                logits = model(input_ids=tokens).logits[0, :-1].float()
                losses += torch.nn.functional.cross_entropy(
                    logits, tokens[0, 1:], reduction="sum"
                ).item()
                labels += len(ids) - 1
            total += losses / labels * len(rows)
    return total / len(documents)


def base_model(assets, name):
    return transformers.AutoModelForCausalLM.from_pretrained(
        assets / "models" / name, dtype=torch.float32
    )


def check_loss(model, events, assets):
    error = relative_error(loss_of(model, assets), last_loss(events))
    expect(error <= TOLERANCE, f"the loss is off by {error:.1e}")
    return error


def check_directory(options, scratch, name, model, world, adapters):
    """Trains, and loads the directory with PEFT."""
    spec = make_spec(options, world, scratch / name, model, adapters)
    events, final = train(options, spec)
    loaded = peft.PeftModel.from_pretrained(base_model(options.assets, model), final)
    saved = scratch / f"{name}-again"
    loaded.save_pretrained(saved)
    ours = dict(read_safetensors(final / "adapter_model.safetensors"))
    theirs = dict(read_safetensors(saved / "adapter_model.safetensors"))
    # PEFT keeps the experts of a layer in one tensor, and tied matrices under both names.
    if name not in ("router", "experts", "tied"):
        expect(ours.keys() == theirs.keys(), f"PEFT has other names: {ours.keys() ^ theirs.keys()}")
        for tensor, values in ours.items():
            expect((values == theirs[tensor]).all(), f"PEFT has another {tensor}")
    return f"loss off by {check_loss(loaded, events, options.assets):.1e}"


def check_going_on(options, scratch):
    """From a directory that PEFT wrote."""
    torch.manual_seed(3)
    config = peft.LoraConfig(
        r=5,
        lora_alpha=7,
        use_rslora=True,
        init_lora_weights=False,
        target_modules="all-linear",
        modules_to_save=["lm_head"],
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(base_model(options.assets, "llama"), config)
    model.save_pretrained(scratch / "theirs")
    adapters = {"adapter_path": str(scratch / "theirs")}
    del_r = make_spec(options, 2, scratch / "on", "llama", adapters, learning_rate=0.0)
    del del_r["peft"]["lora_r"]
    events, final = train(options, del_r)
    before = dict(read_safetensors(scratch / "theirs" / "adapter_model.safetensors"))
    after = dict(read_safetensors(final / "adapter_model.safetensors"))
    expect(before.keys() == after.keys(), f"other names: {before.keys() ^ after.keys()}")
    expect(all((before[name] == after[name]).all() for name in before), "values changed at rate 0")
    return f"loss off by {check_loss(model, events, options.assets):.1e}"


def check_merge(options, scratch):
    """A merged model is what PEFT merges."""
    adapters = {"use_dora": True, "lora_target_modules": ["q_proj", "up_proj"]}
    _, adapter = train(options, make_spec(options, 2, scratch / "apart", "qwen2", adapters))
    merge = adapters | {"merge_adapter": True}
    events, final = train(options, make_spec(options, 2, scratch / "merged", "qwen2", merge))
    model = transformers.AutoModelForCausalLM.from_pretrained(final, dtype=torch.float32)
    error = check_loss(model, events, options.assets)
    theirs = peft.PeftModel.from_pretrained(base_model(options.assets, "qwen2"), adapter)
    for name, values in theirs.merge_and_unload().state_dict().items():
        difference = (model.state_dict()[name] - values).abs().max().item()
        expect(difference < 1e-5, f"{name} differs by {difference}")
    return f"loss off by {error:.1e}"


def check_resume(options, scratch):
    """Bit for bit, from checkpoints of adapters alone; --export makes the directory of one."""
    adapters = {"lora_dropout": 0.2, "quantization": "nf4", "lora_modules_to_save": ["model.norm"]}
    saving = {"save_strategy": "steps", "save_steps": 2}
    whole, final = train(
        options, make_spec(options, 2, scratch / "whole", "qwen3", adapters, **saving)
    )
    checkpoint = scratch / "whole" / "checkpoint-2"
    size = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    # Vectors are padded, which counts where adapters are this small.
    base_bytes = (options.assets / "models/qwen3/model.safetensors").stat().st_size
    expect(size < base_bytes / 4, f"{size} bytes in a checkpoint, {base_bytes} in the base")
    resumed, again = train(
        options,
        make_spec(
            options,
            2,
            scratch / "resumed",
            "qwen3",
            adapters,
            resume_from_checkpoint=str(checkpoint),
        ),
    )
    losses = [
        {step: metrics["loss"] for step, metrics in steps_of(events).items()}
        for events in (whole, resumed)
    ]
    expect(list(losses[1]) == [3, 4], f"steps {list(losses[1])} were taken")
    expect(losses[1].items() <= losses[0].items(), f"other losses: {losses}")
    file = "adapter_model.safetensors"
    expect((final / file).read_bytes() == (again / file).read_bytes(), "other final adapters")
    exported = scratch / "exported"
    subprocess.run(
        [options.trainer, "--export", scratch / "whole" / "checkpoint-4", "--to", exported],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=ranks.TIMEOUT_SECONDS,
    )
    for name in (file, "adapter_config.json"):
        same = (exported / name).read_bytes() == (final / name).read_bytes()
        expect(same, f"the exported {name} is another")
    return f"checkpoints of {size} bytes"


def check_small_memory(options, scratch):
    """QLoRA where the weights in float32 would not fit the device."""
    model = scratch / "large"
    config = transformers.LlamaConfig(
        vocab_size=2048,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    torch.manual_seed(1)
    base = transformers.LlamaForCausalLM(config)
    base.save_pretrained(model)
    weights = sum(p.numel() for p in base.parameters()) * 4
    limit = weights // 2
    adapters = {
        "quantization": "nf4",
        "use_bnb_nested_quant": True,
        "lora_target_modules": ["all-linear"],
    }
    spec = make_spec(options, 1, scratch / "small", "llama", adapters)
    spec["model"]["path"] = str(model)
    spec["training"] |= {"max_steps": 3, "per_device_train_batch_size": 2}
    spec["data"].pop("eval")
    spec["resources"]["device_memory"] = f"{limit}B"
    events, final = train(options, spec)
    peak = max(int(event["memory"]["peakBytes"]) for event in events if "memory" in event)
    expect(peak <= limit, f"{peak} bytes at the peak, {limit} allowed")
    peft.PeftModel.from_pretrained(base, final)
    return f"{weights} bytes of weights in float32, {limit} allowed, {peak} at the peak"


def main():
    options = trials.parse(__doc__)
    torch.set_num_threads(1)
    everything = {"lora_target_modules": ["all-linear"]}
    checks = [
        ("plain", check_directory, "llama", 1, {}),
        ("all-linear", check_directory, "llama_bias", 2, everything),
        ("dora", check_directory, "qwen3", 2, everything | {"use_dora": True}),
        ("rslora", check_directory, "mistral", 1, {"use_rslora": True}),
        ("saved", check_directory, "llama", 2, {"lora_modules_to_save": ["lm_head", "norm"]}),
        ("tied", check_directory, "llama_tied", 2, {"lora_modules_to_save": ["embed_tokens"]}),
        ("router", check_directory, "qwen3_moe", 2, {"lora_target_modules": ["gate", "q_proj"]}),
        ("experts", check_directory, "mixtral", 1, {"lora_target_modules": EXPERTS}),
        ("going on", check_going_on),
        ("merge", check_merge),
        ("resume", check_resume),
        ("small memory", check_small_memory),
    ]
    run = Trials()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for name, check, *arguments in checks:
            arguments = [name, *arguments] if arguments else []
            run.attempt(name, check, options, scratch, *arguments)
    run.finish()


if __name__ == "__main__":
    main()
