#!/usr/bin/env python3
"""Jobs whose completions a model judges: reward_model_test.py --trainer PATH --assets DIR.

What was recorded as the model's reward is what transformers' AutoModelForSequenceClassification
gives for the text that TRL makes of prompt and completion, whatever the job does beside.
"""

import json
import os
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import live_test
import ranks
import torch
import transformers
import trials
from trials import expect, steps_of, train

transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
WEIGHTS = [2.0, 0.5]
LONG = 440  # words of a prompt
SPELLED = {}  # the reward model reads letters
LORA = {"peft.lora_r": 4, "peft.lora_dropout": 0.0}
# What goes on beside the reward model: method, ranks, fields.
BESIDE = {
    "layerwise, ZeRO-2": (
        "grpo",
        2,
        {"generation.weights": "layerwise", "memory.sharding": "zero2"},
    ),
    "cp": ("rloo", 2, {"parallelism.cp_size": 2}),
    "QLoRA": ("grpo", 2, LORA | {"peft.quantization": "nf4"}),
    "offloaded, merged LoRA": (
        "grpo",
        1,
        LORA | {"memory.offload_param_device": "cpu", "generation.merge_adapter": True},
    ),
    "Online DPO": ("online_dpo", 2, {}),
    "PPO": ("ppo", 2, {}),
    "three ranks": ("rloo", 3, {}),
}


def make_model(options, scratch, model="llama_reward", *, chats=False):
    """A directory as a user has it: weights, tokenizer, maybe a chat template."""
    directory = scratch / f"model-{model}"
    shutil.copytree(options.assets / "models" / model, directory)
    for file in (options.assets / "tokenizer").iterdir():
        shutil.copy(file, directory)
    if chats:
        shutil.copy(options.assets / "chat.jinja", directory / "chat_template.jinja")
    return directory


def make_spec(options, scratch, name, directory, method="grpo", world=1, *, fields=None, **more):
    """A job of the live tests, which writes what it made to record-NAME."""
    rows = {"per_device_train_batch_size": 12 // world} if world == 3 else {}
    if "parallelism.cp_size" in (fields or {}):
        rows = {"per_device_train_batch_size": 8}
    spec = live_test.make_spec(
        options, scratch, name, method, world, fields=fields, **(rows | more)
    )
    spec["reward_funcs"] = [{"name": "model", "model": {"path": str(directory)}}]
    spec["reward_funcs"].append(live_test.REWARDS[0])
    if method != "ppo":
        spec["method"][method]["reward_weights"] = WEIGHTS
    spec.setdefault("generation", {})["record_to"] = str(scratch / f"record-{name}")
    return spec


def transformers_scores(directory, texts):
    """As GRPOTrainer._calculate_rewards has them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        directory, dtype=torch.float32
    ).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    inputs = tokenizer(
        texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False
    )
    with torch.no_grad():
        return model(**inputs).logits[:, 0].double()


def texts_of(directory, lines, prompts):
    """`prompts`: what the records have, by their text as the policy saw it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    texts = []
    for line in lines:
        prompt = prompts[line["prompt"]]
        if isinstance(prompt, str):
            texts.append(prompt + line["completion"])
            continue
        answer = {"role": "assistant", "content": line["completion"]}
        texts.append(tokenizer.apply_chat_template([*prompt, answer], tokenize=False))
    return texts


def text_prompts(scratch):
    records = map(json.loads, (scratch / "prompts.jsonl").read_text().splitlines())
    return {record["prompt"]: record["prompt"] for record in records}


def check_scores(directory, lines, prompts):
    expect(lines, "nothing was recorded")
    scores = transformers_scores(directory, texts_of(directory, lines, prompts))
    got = torch.tensor([line["rewards"]["model"] for line in lines], dtype=torch.float64)
    error = ((got - scores).abs().max() / scores.abs().max()).item()
    expect(error < TOLERANCE, f"scores differ by {error:.2e} of the largest")
    expect(scores.std() > TOLERANCE * 100 * scores.abs().max(), f"scores are alike: {scores}")
    return error


def equal_those_of_transformers(options, scratch):
    """Of several families and ranks; in several passes, of which some ranks have fewer."""
    worst, num_lines = 0, 0
    for model in ("llama_reward", "qwen2_reward"):
        directory = make_model(options, scratch, model)
        for world in (1, 2):
            for limit in (2048, 40):
                name = f"{model}-{world}-{limit}"
                limits = {"max_num_batched_tokens": limit, "max_num_seqs": 8}
                fields = {f"generation.{field}": value for field, value in limits.items()}
                spec = make_spec(
                    options, scratch, name, directory, world=world, fields=fields, max_steps=5
                )
                events = train(options, spec)
                lines = live_test.recorded(scratch / f"record-{name}")
                worst = max(worst, check_scores(directory, lines, text_prompts(scratch)))
                num_lines += len(lines)
                check_metrics(steps_of(events)[1]["metrics"], lines[: live_test.ROWS])
    return f"{num_lines} scores within {worst:.1e}"


def check_metrics(metrics, lines):
    """Of the first generation: means by name, and the weighted sum."""
    rewards = [list(line["rewards"].values()) for line in lines]
    means = [sum(column) / len(lines) for column in zip(*rewards, strict=True)]
    wanted = {"rewards/model/mean": means[0], "rewards/short/mean": means[1]}
    wanted["reward"] = sum(weight * mean for weight, mean in zip(WEIGHTS, means, strict=True))
    for name, value in wanted.items():
        expect(abs(metrics[name] - value) < 1e-5, f"{name} is {metrics[name]}, must be {value}")


def read_conversations(options, scratch):
    directory = make_model(options, scratch, chats=True)
    policy = scratch / "policy-tokenizer"
    shutil.copytree(options.assets / "tokenizer", policy)
    shutil.copy(options.assets / "chat.jinja", policy / "chat_template.jinja")
    chats = [
        [{"role": "user", "content": f"tile {i}" + " brick" * (i % 4)}]
        for i in range(live_test.PROMPTS)
    ]
    (scratch / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": chat}) + "\n" for chat in chats)
    )
    spec = make_spec(options, scratch, "out", directory, world=2, max_steps=5)
    spec["model"]["tokenizer"] = str(policy)
    train(options, spec)
    lines = live_test.recorded(scratch / "record-out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(policy)
    prompts = {
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True): chat
        for chat in chats
    }
    error = check_scores(directory, lines, prompts)
    shutil.copytree(scratch / "model-llama_reward", scratch / "bare")
    (scratch / "bare" / "chat_template.jinja").unlink()
    spec["reward_funcs"][0]["model"]["path"] = str(scratch / "bare")
    expect_refused(options, scratch, spec, "must have a chat template")
    return f"{len(lines)} scores within {error:.1e}"


def beside(name, options, scratch):
    method, world, fields = BESIDE[name]
    directory = make_model(options, scratch)
    spec = make_spec(options, scratch, "out", directory, method, world, fields=fields, max_steps=5)
    steps = steps_of(train(options, spec))
    expect(sorted(steps) == [1, 2, 3, 4, 5], f"steps {sorted(steps)}")
    lines = live_test.recorded(scratch / "record-out")
    error = check_scores(directory, lines, text_prompts(scratch))
    return f"{len(lines)} scores within {error:.1e}"


def goes_on(options, scratch):
    directory = make_model(options, scratch)
    spec = make_spec(
        options, scratch, "whole", directory, world=2, save_strategy="steps", save_steps=1
    )
    steps = steps_of(train(options, spec))
    for saved in (2, 4):
        resumed = make_spec(
            options,
            scratch,
            f"resumed-{saved}",
            directory,
            world=2,
            resume_from_checkpoint=str(scratch / "whole" / f"checkpoint-{saved}"),
        )
        shutil.copytree(scratch / "record-whole", scratch / f"record-resumed-{saved}")
        live_test.compare(steps_of(train(options, resumed)), steps)
        files = trials.files_of(scratch / f"record-resumed-{saved}")
        expect(files == trials.files_of(scratch / "record-whole"), "other files were recorded")
    return "to the bit"


def spell_out(directory):
    """Leaves a tokenizer of letters."""
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["merges"] = []
    path.write_text(json.dumps(tokenizer))


def write_long_prompts(scratch, words):
    with (scratch / "prompts.jsonl").open("w") as file:
        for i in range(live_test.PROMPTS):
            file.write(json.dumps({"prompt": f"tile {i:02d}" + " brick" * words}) + "\n")


def takes_what_was_rehearsed(options, scratch):
    """A pass of the model holds most of the phase: prompts are long, and of one length. Completions
    are short, as the tokenizer may make more or fewer tokens of them than the policy did."""
    directory = make_model(options, scratch)
    write_long_prompts(scratch, LONG)
    short = {"method.grpo.max_completion_length": 2, "generation.max_num_batched_tokens": 16384}
    worst = 0
    for number, (world, fields) in enumerate(
        [
            (1, {}),
            (2, {"generation.weights": "layerwise"}),
            (2, {"memory.offload_param_device": "cpu"}),
            (1, SPELLED),
        ]
    ):
        if fields is SPELLED:
            spell_out(directory)
            write_long_prompts(scratch, LONG // 6)
        spec = make_spec(
            options,
            scratch,
            f"out-{number}",
            directory,
            world=world,
            fields=fields | short,
            max_steps=5,
        )
        spec["reward_funcs"][1]["length"] = {}
        rehearsed = trials.rehearse(options, spec, scratch)
        ranks.run(options.trainer, spec, world, scratch)
        memories = [
            trials.last_memory(ranks.read_events(scratch / f"rank{rank}.out"))
            for rank in range(world)
        ]
        of_model = [trials.held(memory)[space] for memory in memories for space in owners(fields)]
        told = [trials.held(rehearsed)[space] for space in owners(fields)] * world
        expect(of_model == told and min(told) > 0, f"its weights: {told}, and {of_model}")
        want, got = of_phase(rehearsed), max(map(of_phase, memories))
        expect(abs(want - got) < 0.005 * got, f"case {number}: rehearsed {want}, measured {got}")
        worst = max(worst, abs(want - got) / got)
        del spec["reward_funcs"][0]
        del spec["method"]["grpo"]["reward_weights"]
        without = of_phase(trials.rehearse(options, spec, scratch))
        expect(without < 0.9 * want, f"without the model {without} of {want}")
    return f"within {worst:.1e}"


def owners(fields):
    return ["host reference" if "memory.offload_param_device" in fields else "reference"]


def of_phase(report):
    return next(
        int(phase["peakBytes"]) for phase in report["phases"] if phase["phase"] == "generate"
    )


def expect_refused(options, scratch, spec, sentence):
    _, lines = trials.run_alone(options, spec, scratch, "--check")
    failures = lines[-1].get("violations", [])
    field = "reward_funcs[0].model.path"
    expect(
        [f.get("field") for f in failures] == [field] and sentence in failures[0]["message"],
        f'no "{sentence}": {failures}',
    )
    expect(failures[0]["message"].startswith(field), failures[0]["message"])


def refuses_what_is_no_classifier(options, scratch):
    directory = make_model(options, scratch)
    spec = make_spec(options, scratch, "out", directory)

    def refuses(sentence, path):
        spec["reward_funcs"][0]["model"]["path"] = str(path)
        expect_refused(options, scratch, spec, sentence)

    refuses("its weights have no tensor score.weight", options.assets / "models" / "llama")
    refuses("config.json", options.assets / "tokenizer")
    refuses("must hold the reward model's tokenizer", options.assets / "models" / "llama_reward")
    other = scratch / "three"
    shutil.copytree(directory, other)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        options.assets / "models" / "llama", num_labels=3
    )
    model.save_pretrained(other)
    refuses("its score.weight scores 3 labels", other)
    return "4 mistakes"


def main():
    trials.run_each(
        __doc__,
        equal_those_of_transformers,
        read_conversations,
        *(live_test.same(f"beside {name}", beside, name) for name in BESIDE),
        goes_on,
        takes_what_was_rehearsed,
        refuses_what_is_no_classifier,
    )


if __name__ == "__main__":
    main()
