"""What recorded runs of online methods sampled, as data.rollouts takes it."""

import numpy as np

PAD_ID, END_ID = 2045, 2047


def rollout(prompt, completion, **others):
    """Of padded ids: the prompt's at its beginning, the completion's behind its end."""
    start = next(i for i, token in enumerate(prompt) if token != PAD_ID)
    length = completion.index(END_ID) + 1 if END_ID in completion else len(completion)
    return {
        "prompt_ids": prompt[start:],
        "completion_ids": completion[:length],
        "truncated": END_ID not in completion,
        **others,
    }


def compared(record, reward_names):
    """Rows in the order in which they were trained on; those of a prompt are a group."""
    config = record["config"]
    rows = []
    for generation in record["generations"]:
        left = {}
        for i, ids in enumerate(
            zip(generation["prompt_ids"], generation["completion_ids"], strict=True)
        ):
            left.setdefault(repr(ids), []).append(i)
        begin = generation["at_micro_step"]
        for step in record["micro_steps"][begin : begin + config["steps_per_generation"]]:
            for ids in zip(step["prompt_ids"], step["completion_ids"], strict=True):
                i = left[repr(ids)].pop()
                rewards = dict(zip(reward_names, generation["rewards_per_func"][i], strict=True))
                group = i // config["num_generations"]
                rows.append(rollout(*ids, group=group, rewards=rewards))
    return rows


def pairs(record):
    rows = []
    for i, step in enumerate(record["micro_steps"]):
        count = len(step["rewards"]) // 2
        for k in range(count):
            for at in (k, k + count):
                ids = step["prompt_ids"][at], step["completion_ids"][at]
                rewards = {"reward_e": step["rewards"][at]}
                rows.append(rollout(*ids, group=f"{i}-{k}", rewards=rewards))
    return rows


def distilled(record):
    """Of the first step: see first_step_of_distillation."""
    batch = record["micro_steps"][0]["batch"]
    columns = (batch[field]["values"] for field in ("input_ids", "attention_mask", "labels"))
    rows = []
    for ids, mask, labels in zip(*columns, strict=True):
        start, end = mask.index(1), len(mask) - mask[::-1].index(1)
        border = next(i for i, label in enumerate(labels) if label >= 0)
        rows.append({"prompt_ids": ids[start:border], "completion_ids": ids[border:end]})
    return rows


def judged(record):
    """Of PPO, in the order in which they were made. What a completion that was cut off lost of its
    score is given back, as a job takes it again.
    """
    penalty = record["config"]["missing_eos_penalty"]
    rows = []
    for update in record["updates"]:
        columns = (update[name] for name in ("queries", "postprocessed_responses", "scores"))
        for prompt, completion, score in zip(*columns, strict=True):
            row = rollout(prompt, completion)
            rows.append(row | {"rewards": {"score": score + penalty * row["truncated"]}})
    return rows


def steps_of_ppo(record):
    """A mini-batch of an update is a step. What is said of an update is said at its first one."""
    steps = []
    for update, log in zip(record["updates"], record["logs"], strict=True):
        for i, micro in enumerate(update["micro"]):
            of_update = {name: log[name] for name in OF_PPO_UPDATE} if i == 0 else {}
            step = {"step": len(steps) + 1, "learning_rate": log["lr"]}
            steps.append(step | of_mini_batch(update, micro) | of_update)
    return steps


OF_PPO_UPDATE = [
    "objective/kl",
    "objective/entropy",
    "objective/non_score_reward",
    "objective/rlhf_reward",
    "objective/scores",
    "val/num_eos_tokens",
]


def of_mini_batch(update, micro):
    """Metrics whose means TRL logs."""
    rows = micro["indices"]
    old = np.array(update["logprobs"])[rows]
    behind = np.array(update["padding_mask"])[rows]
    ratios = np.exp(np.where(behind, 0, np.array(micro["new_logprobs"]) - old))
    advantages = np.array(update["advantages"])[rows]
    is_clipped = np.maximum(-advantages * np.clip(ratios, 0.8, 1.2), -advantages * ratios)
    clipped = (is_clipped > -advantages * ratios) & ~behind
    return {
        "loss": micro["loss"],
        "grad_norm": micro["grad_norm_unclipped_accumulated"],
        "loss/policy_avg": micro["pg_loss"],
        "loss/value_avg": micro["vf_loss"],
        "val/clipfrac_avg": micro["vf_clipfrac"],
        "policy/approxkl_avg": float(np.mean(np.log(ratios) ** 2) / 2),
        "policy/clipfrac_avg": float(clipped.sum() / (~behind).sum()),
        "val/ratio": float(ratios.mean()),
    }


def first_step_of_distillation(record):
    """TRL divides by the labels of the documents whose completions the student replaced. That
    changes how steps weigh against each other, so that runs part after the first one.
    """
    step, micro_step = record["steps"][0], record["micro_steps"][0]
    scale = micro_step["num_items_in_batch"] / micro_step["batch"]["labels"]["n_valid"]
    return step | {field: step[field] * scale for field in ("loss", "grad_norm")}


def rollouts(record):
    """Rows of a run that sampled; none of another."""
    if record["name"] == "gkd_on_policy":
        return distilled(record)
    if record["kind"] in ("grpo", "rloo"):
        return compared(record, ["reward_len", "reward_e"])
    return pairs(record) if record["kind"] == "online_dpo" else []
