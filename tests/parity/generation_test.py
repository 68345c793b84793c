#!/usr/bin/env python3
"""Completions of merged adapters, pairs that nobody can judge, and weights that have diverged.

generation_test.py --trainer PATH --assets DIR
"""

import json

import live_test
import ranks
import trials
from trials import expect, steps_of, train

LORA = {"peft.lora_r": 4, "peft.lora_dropout": 0.0, "peft.lora_alpha": 16}
MERGED = LORA | {"generation.merge_adapter": True}
# Without it no number of a step depends on the last bits of what tokens were sampled with.
UNCORRECTED = {"method.grpo.vllm_importance_sampling_correction": False}


def merged_adapters_change_nothing(options, scratch):
    """Tokens are the same, and what is learnt from them, to the bit."""
    for world, fields in (
        (1, {}),
        (2, {}),
        (2, {"generation.weights": "layerwise", "memory.sharding": "zero2"}),
        (2, {"peft.use_dora": True}),
    ):
        told, made, final = [], [], []
        for name, adapters in (("apart", LORA), ("merged", MERGED)):
            label = f"{name}-{world}-{len(fields)}-{'peft.use_dora' in fields}"
            record = scratch / f"record-{label}"
            spec = live_test.make_spec(
                options,
                scratch,
                label,
                world=world,
                fields=adapters | UNCORRECTED | fields | {"generation.record_to": str(record)},
            )
            events = train(options, spec)
            told.append(steps_of(events))
            made.append([line["completion_ids"] for line in live_test.recorded(record)])
            final.append(trials.files_of(trials.final_directory(events)))
        expect(made[0] == made[1], f"{fields} on {world} made other tokens")
        live_test.compare(*told)
        expect(final[0] == final[1], f"{fields} on {world} learnt something else")
    return "of LoRA and DoRA, gathered and layerwise"


def merging_is_rehearsed(options, scratch):
    live_test.write_prompts(scratch / "prompts.jsonl", longer=False)
    worst = 0
    for number, (world, fields) in enumerate([(1, {}), (2, {"generation.weights": "layerwise"})]):
        spec = live_test.make_spec(
            options, scratch, f"out-{number}", world=world, fields=MERGED | fields
        )
        rehearsed = phases_of(trials.rehearse(options, spec, scratch))
        ranks.run(options.trainer, spec, world, scratch)
        of_ranks = [
            phases_of(trials.last_memory(ranks.read_events(scratch / f"rank{rank}.out")))
            for rank in range(world)
        ]
        for name in ("generate", "forward", "backward", "optimizer"):
            measured = max(phases[name] for phases in of_ranks)
            error = abs(rehearsed[name] - measured) / measured
            expect(error < 0.005, f"{name}: rehearsed {rehearsed[name]}, measured {measured}")
            worst = max(worst, error)
    return f"within {worst:.1e}"


def phases_of(report):
    return {phase["phase"]: int(phase["peakBytes"]) for phase in report["phases"]}


def refuses_to_merge(options, scratch):
    for fields, sentence in (
        ({"generation.merge_adapter": True}, "without peft"),
        (MERGED | {"peft.quantization": "nf4"}, "with peft.quantization"),
    ):
        spec = live_test.make_spec(options, scratch, "out", fields=fields)
        code, lines = trials.run_alone(options, spec, scratch, "--check")
        told = json.dumps(lines[-1])
        expect(
            "generation.merge_adapter is true, must be false " + sentence in told,
            f"{code}: {told}",
        )
    return "2 mistakes"


def pairs_without_rewards_are_left_out(options, scratch):
    """Of every third prompt no answer is known."""
    spec = live_test.make_spec(options, scratch, "live", "online_dpo", 2, max_steps=6)
    spec["training"]["per_device_train_batch_size"] = 2
    spec["reward_funcs"] = live_test.REWARDS[2:]
    spec["generation"] = {"record_to": str(scratch / "record")}
    events = train(options, spec)
    steps = steps_of(events)
    expect(sorted(steps) == list(range(1, 7)), f"steps {sorted(steps)}")
    logged = [event["log"].get("text", "") for event in events if "log" in event]
    expect(any("it does not count" in text for text in logged), f"nobody was told: {logged}")
    unjudged = [step["metrics"].get("val/unjudged_pairs", 0) for step in steps.values()]
    expect(0 < sum(unjudged) < len(unjudged), f"left out: {unjudged}")
    again = live_test.make_spec(options, scratch, "again", "online_dpo", 2, max_steps=6)
    again["training"]["per_device_train_batch_size"] = 2
    del again["reward_funcs"]
    again["data"] = {"rollouts": str(scratch / "record")}
    replayed = steps_of(train(options, again))
    for step in steps.values():
        del step["metrics"]["sampling/staleness"]
    for step in [*steps.values(), *replayed.values()]:
        step["epoch"] = None
    live_test.compare(replayed, steps)
    return f"{sum(unjudged) / len(unjudged):.0%} left out, and again in a replay"


def learns_nothing_of_them(options, scratch):
    (scratch / "prompts.jsonl").write_text('{"prompt": "tile"}\n' * live_test.PROMPTS)
    spec = live_test.make_spec(options, scratch, "out", "online_dpo", 2, max_steps=2)
    spec["reward_funcs"] = live_test.REWARDS[2:]
    for step in steps_of(train(options, spec)).values():
        expect(step.get("loss", 0) == 0 and step.get("gradNorm", 0) == 0, f"{step}")
    return "no loss, no gradient"


def tells_of_weights_that_diverged(options, scratch):
    """A step that makes them infinite is found where completions are made of them."""
    spec = live_test.make_spec(
        options,
        scratch,
        "out",
        fields={"method.grpo.steps_per_generation": 1, "method.grpo.num_iterations": 1},
        learning_rate=1e37,
    )
    code, lines = trials.run_alone(options, spec, scratch)
    failed = lines[-1].get("failed", {})
    expect(code != 0 and failed.get("kind") == "USER", f"{code}: {lines[-1]}")
    expect(failed["field"] == "training.learning_rate", f"{failed}")
    expect("logits are not finite after step" in failed["message"], f"{failed}")
    return failed["message"]


def main():
    trials.run_each(
        __doc__,
        merged_adapters_change_nothing,
        merging_is_rehearsed,
        refuses_to_merge,
        pairs_without_rewards_are_left_out,
        learns_nothing_of_them,
        tells_of_weights_that_diverged,
    )


if __name__ == "__main__":
    main()
