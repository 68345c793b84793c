"""Lets TRL's trainers train on completions from a file in place of those they would generate."""

import functools
import types

import torch
from rollouts import END_ID

PAD_ID = END_ID - 1


def reward_named(name, state):
    def reward(**_):
        return [row["rewards"][name] for row in state["rows"]]

    reward.__name__ = name
    return reward


def prompts_of(records, per_prompt):
    """A dataset that names the completions' prompts by numbers."""
    return [{"prompt": str(i)} for i in range(len(records) // per_prompt)]


class Generations:
    """Completions in the order in which a trainer that compares them asks for them: by prompt.

    In the file they stand in the order in which it trains on them.
    """

    def __init__(self, records, size, state):
        self.records, self.size, self.state = records, size, state
        self.next = 0

    def take(self):
        begin = self.next % (len(self.records) // self.size) * self.size
        self.next += 1
        rows = self.records[begin : begin + self.size]
        first = {}
        for i, row in enumerate(rows):
            first.setdefault(row["group"], i)
        order = sorted(range(self.size), key=lambda i: (first[rows[i]["group"]], i))
        self.state["rows"] = [rows[i] for i in order]
        self.state["places"] = torch.tensor([order.index(i) for i in range(self.size)])
        return self.state["rows"]


def unshuffle(state, batch):
    """In place of TRL's shuffle of a generation: the order of the file."""

    def permuted(values):
        if values is None or (isinstance(values, torch.Tensor) and values.ndim == 0):
            return values
        return values[state["places"]]

    return {key: permuted(values) for key, values in batch.items()}


def rollout_of(rows):
    has_logprobs = "logprobs" in rows[0]
    return {
        "prompt_ids": [row["prompt_ids"] for row in rows],
        "completion_ids": [row["completion_ids"] for row in rows],
        "logprobs": [row["logprobs"] for row in rows] if has_logprobs else None,
        **({"env_mask": [row["env_mask"] for row in rows]} if "env_mask" in rows[0] else {}),
    }


def replay_grpo(trainer, module, generations):
    state = generations.state
    module.shuffle_sequence_dict = functools.partial(unshuffle, state)
    trainer.rollout_func = lambda prompts, trainer: rollout_of(generations.take())
    if "logprobs" in generations.records[0]:
        trainer.use_vllm, trainer._last_loaded_step = True, 0
        trainer.vllm_generation = types.SimpleNamespace(sync_weights=lambda: None)


def replay_rloo(trainer, module, generations):
    state = generations.state
    module.shuffle_sequence_dict = functools.partial(unshuffle, state)

    def tokenize(prompts):
        return [row["prompt_ids"] for row in generations.take()], None, {}

    def generate(prompt_ids, images, multimodal_fields):
        return [row["completion_ids"] for row in state["rows"]]

    trainer._tokenize_prompts, trainer._generate_single_turn = tokenize, generate


def padded(rows, left):
    """(ids, mask) of rows of one length, padded at one end."""
    longest = max(map(len, rows))

    def pad(row, values, padding):
        rest = [padding] * (longest - len(row))
        return rest + values if left else values + rest

    ids = [pad(row, row, PAD_ID) for row in rows]
    masks = [pad(row, [1] * len(row), 0) for row in rows]
    return torch.tensor(ids), torch.tensor(masks)


def replay_online_dpo(trainer, records, state):
    """Pairs: the first completions of the prompts of a batch come before the second ones.

    What it logs of losses is rounded: they are noted in the state.
    """

    def generate(model, prompts, images=None):
        rows = [records[2 * int(prompt) + k] for k in range(2) for prompt in prompts]
        state["rows"] = rows
        of_prompts = padded([row["prompt_ids"] for row in rows], left=True)
        completions = padded([row["completion_ids"] for row in rows], left=False)
        return *of_prompts, *completions, None

    step = trainer.training_step

    def training_step(*arguments, **options):
        loss = step(*arguments, **options)
        state.setdefault("losses", []).append(loss.item())
        return loss

    trainer._generate, trainer.training_step = generate, training_step
