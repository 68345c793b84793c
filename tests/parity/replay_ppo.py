"""Trains PPO cases with TRL 1.12, the last that had it, on completions from a file:

pip install --no-deps --target old_trl trl==1.12.0
PYTHONPATH=old_trl python run_trl.py ppo

It logs once for all passes over completions; what the cases expect is noted at each backward.
"""

import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from replay import padded
from rollouts import END_ID
from weights import weight_norms

PAD_ID = END_ID - 1
REFERENCE = "reference"  # the adapter that is one
# The means of these over an update are logged; a job has them of each mini-batch.
OF_MINI_BATCHES = {
    "loss/policy_avg": lambda now: now["pg_loss"],
    "loss/value_avg": lambda now: now["vf_loss"],
    "val/clipfrac_avg": lambda now: now["vf_clipfrac"],
    "policy/approxkl_avg": lambda now: (now["logprobs_diff"] ** 2).mean() / 2,
    "policy/clipfrac_avg": lambda now: clipped_share(now),
    "val/ratio": lambda now: now["ratio"].mean(),
}
OF_UPDATES = [
    "objective/kl",
    "objective/entropy",
    "objective/non_score_reward",
    "objective/rlhf_reward",
    "objective/scores",
    "val/num_eos_tokens",
]


def clipped_share(now):
    counts = ~now["padding_mask"][now["micro_batch_inds"]]
    return ((now["pg_losses2"] > now["pg_losses"]) & counts).sum() / counts.sum()


def can_train():
    try:
        import trl.experimental.ppo  # noqa: F401
    except ImportError:
        return False
    return True


class Replay:
    """Stands in for TRL's data, sampling and reward model."""

    def __init__(self, records, size, temperature):
        self.records, self.size, self.temperature = records, size, temperature
        self.rows = []

    def __iter__(self):
        for begin in range(0, len(self.records) - self.size + 1, self.size):
            self.rows = self.records[begin : begin + self.size]
            yield {"input_ids": padded([row["prompt_ids"] for row in self.rows], left=True)[0]}

    def sample(self, module):
        """For batch_generation: what was sampled, and the logits that it would have come from."""

        def generate(model, queries, size, pad_id, config):
            completions = padded([row["completion_ids"] for row in self.rows], left=False)[0]
            sampled = torch.cat((queries, completions), 1)
            logits = module.forward(model, sampled, pad_id).logits[:, queries.shape[1] - 1 : -1]
            return sampled, logits / (self.temperature + 1e-7)

        return generate

    def judge(self, module, reward_model):
        """For get_reward, which the value model's values come from, too."""
        values_of = module.get_reward

        def get_reward(model, ids, pad_id, context_length):
            if model is not reward_model:
                return values_of(model, ids, pad_id, context_length)
            rewards = [sum(row["rewards"].values()) for row in self.rows]
            return None, torch.tensor(rewards), None

        return get_reward


class Notes:
    """Of each optimizer step."""

    def __init__(self, trainer, accumulation):
        self.trainer, self.accumulation = trainer, accumulation
        self.steps, self.micro = [], []
        self.backward, self.log = trainer.accelerator.backward, trainer.log
        trainer.accelerator.backward, trainer.log = self.note, self.note_update

    def note(self, loss, **options):
        now = dict(sys._getframe(1).f_locals)
        self.backward(loss, **options)
        measured = {name: of(now).item() for name, of in OF_MINI_BATCHES.items()}
        self.micro.append({"loss": loss.item()} | measured)
        if len(self.micro) < self.accumulation:
            return
        gradients = [p.grad.norm() for p in self.trainer.model.parameters() if p.grad is not None]
        means = {name: float(np.mean([m[name] for m in self.micro])) for name in self.micro[0]}
        norm = torch.norm(torch.stack(gradients)).item()
        self.steps.append({"step": len(self.steps) + 1} | means | {"grad_norm": norm})
        self.micro = []

    def note_update(self, logs, *arguments, **options):
        of_update = [step for step in self.steps if "learning_rate" not in step]
        for step in of_update:
            step["learning_rate"] = logs["lr"]
        of_update[0] |= {name: logs[name] for name in OF_UPDATES}
        self.log(logs, *arguments, **options)


def load_classifier(directory):
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        directory, dtype=torch.float32
    )


def make_trainer(module, case, assets, models, records, output):
    """`models`: the policy and the reference, or None."""
    config_of = sys.modules["trl.experimental.ppo"].PPOConfig
    training, options = case.training_options(), case.method_options()
    for field in ("max_steps", "max_grad_norm", "train_sampling_strategy"):
        training.pop(field, None)
    config = config_of(
        output_dir=output,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=case.batch,
        local_rollout_forward_batch_size=case.batch * training["gradient_accumulation_steps"],
        total_episodes=len(records),
        num_sample_generations=0,
        stop_token="eos",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **({"model_adapter_name": "default", "ref_adapter_name": REFERENCE} if case.peft else {}),
        **{"logging_steps": 1, "save_strategy": "no"} | training,
        **options,
        **case.memory_options(),
    )
    policy, reference = models
    value, reward = (load_classifier(assets / "models" / case.value) for _ in range(2))
    tokenizer = transformers.AutoTokenizer.from_pretrained(assets / "tokenizer")
    prompts = [{"input_ids": row["prompt_ids"]} for row in records]
    trainer = module.PPOTrainer(
        args=config,
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=reward,
        value_model=value,
        train_dataset=prompts,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    rows = case.batch * config.gradient_accumulation_steps
    replay = Replay(records, rows, config.temperature)
    trainer.dataloader = replay
    module.batch_generation = replay.sample(module)
    module.get_reward = replay.judge(module, reward)
    return trainer


def train(case, assets, models, records):
    """(steps, norms of the policy's final weights, norms of the value model's)."""
    import trl.experimental.ppo.ppo_trainer as module

    originals = module.batch_generation, module.get_reward
    np.random.seed(case.training_options()["seed"])
    with tempfile.TemporaryDirectory() as output:
        trainer = make_trainer(module, case, assets, models, records, output)
        notes = Notes(trainer, case.training_options()["gradient_accumulation_steps"])
        trainer.train()
        trainer.model.policy.save_pretrained(f"{output}/policy")
        trainer.model.value_model.save_pretrained(f"{output}/value")
        norms = [weight_norms(pathlib.Path(output) / name) for name in ("policy", "value")]
    module.batch_generation, module.get_reward = originals
    return notes.steps, *norms
