"""The training methods, and those of their variants that hold other memory or need other sums."""

import functools
import pathlib
import re
from dataclasses import dataclass, field

JOB_PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto" / "tessera" / "v1" / "job.proto"


@dataclass(frozen=True)
class Refusal:
    """An axis of techniques that the variant does not go with, and what the trainer says then."""

    axis: str
    sentence: str


@dataclass(frozen=True, eq=False)
class Method:
    name: str
    kind: str  # its name in the job file
    data: str  # a file of the assets
    fields: dict = field(default_factory=dict)  # of the method; {assets} is their directory
    training: dict = field(default_factory=dict)
    # Of a variant that must give the numbers of another one: its name.
    like: str = ""
    refuses: tuple = ()
    # Losses and metrics of it are differences of numbers as large as this.
    size: float = 0
    # It is one of many: only the cover's cells are run of it.
    in_cover_only: bool = False

    def spec_fields(self, assets):
        """Of the job file, by path."""
        values = {
            name: value.format(assets=assets) if isinstance(value, str) else value
            for name, value in self.fields.items()
        }
        return {f"method.{self.kind}.{name}": value for name, value in values.items()} | {
            f"training.{name}": value for name, value in self.training.items()
        }

    def has(self, technique):
        """Whether the job file has the fields of the technique, with this method."""
        prefix = f"method.{self.kind}."
        wanted = {path for path in technique.fields_of(self.kind) if path.startswith("method.")}
        return all(path.removeprefix(prefix) in knobs()[self.kind] for path in wanted)

    def refusal(self, technique):
        return next((each for each in self.refuses if each.axis == technique.axis), None)

    def takes(self, technique):
        return self.has(technique) and self.refusal(technique) is None


@functools.cache
def knobs():
    """Names of the fields of each method, from job.proto."""
    messages = dict(re.findall(r"^message (\w+) \{\n(.*?)^\}", JOB_PROTO.read_text(), re.M | re.S))
    kinds = re.findall(r"^\s+(\w+) (\w+) = \d+;", messages["Method"], re.M)
    return {
        kind: set(re.findall(r"^  (?:\w+ )?\w+ (\w+) = \d+", messages[message], re.M))
        for message, kind in kinds
    }


def replay(name, data, size, fields):
    """Of a method that trains on completions, recorded ones."""
    return Method(name, name, data, fields, size=size, in_cover_only=True)


# Of a ratio near a bound rounding decides whether its token is learnt of.
UNCLIPPED = {"cliprange": 10.0, "cliprange_value": 10.0}

# Rows whose completions are exchanged are those of all ranks together.
SPLIT = {"accelerator_config": {"split_batches": True}}

METHODS = [
    Method("sft", "sft", "few"),
    Method("dpo", "dpo", "preferences"),
    Method(
        "dpo-precomputed",
        "dpo",
        "preferences",
        {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 5},
        like="dpo",
    ),
    Method(
        "dpo-synced",
        "dpo",
        "preferences",
        {"sync_ref_model": True, "ref_model_sync_steps": 1},
        refuses=(
            Refusal(
                "weights",
                "method.dpo.sync_ref_model is true, must be false with peft: the reference is of "
                "whole weights",
            ),
        ),
    ),
    Method("kto", "kto", "judged", training=SPLIT),
    Method("kto-unpaired", "kto", "judged", {"loss_type": "apo_zero_unpaired"}, SPLIT),
    Method("reward", "reward", "pairs"),
    Method(
        "gkd",
        "gkd",
        "chats",
        {
            "teacher_model_name_or_path": "{assets}/models/llama_teacher",
            "chat_template_path": "{assets}/chat.jinja",
        },
    ),
    # Two steps are passes over the same completions.
    replay(
        "grpo",
        "rollouts_judged",
        1.0,
        {"num_generations": 4, "max_completion_length": 14, "num_iterations": 2, "beta": 0.1},
    ),
    replay("rloo", "rollouts_judged", 10.0, {"num_generations": 4, "num_iterations": 2}),
    replay("online_dpo", "rollouts_pairs", 1.0, {}),
    replay(
        "ppo",
        "rollouts_judged",
        1.0,
        {"value_model_path": "{assets}/models/llama_reward", "num_ppo_epochs": 2} | UNCLIPPED,
    ),
]
OFTEN = [method for method in METHODS if not method.in_cover_only]
BY_NAME = {method.name: method for method in METHODS}
KINDS = tuple(dict.fromkeys(method.kind for method in METHODS))
