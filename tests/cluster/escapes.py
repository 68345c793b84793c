"""Ways for a job to name what lies outside of the directories that it may use."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable

MARK = "outside-6f1d0c"


@dataclasses.dataclass(frozen=True)
class Escape:
    name: str
    # That the error names.
    field: str
    # break_job(allowed, outside, directory): the fields to set. `directory` is empty, allowed, and
    # the case's own.
    break_job: Callable
    # What the error says, where the path itself is good.
    pattern: str = ""


def outside_path(field, name, **others):
    """The field names a file or directory outside."""
    return Escape(
        f"{field} outside",
        field,
        lambda allowed, outside, directory: {field: str(outside / name)} | others,
    )


def link(target):
    """A link in the case's directory: target(allowed, outside)."""

    def make(allowed, outside, directory):
        (directory / "link").symlink_to(target(allowed, outside))
        return directory / "link"

    return make


def model_at(path_of):
    return lambda *where: {"model.path": str(path_of(*where))}


def through_link(field, target):
    return lambda allowed, outside, directory: {
        field: str(link(target)(allowed, outside, directory))
    }


# A job that makes completions, which something judges.
ONLINE = {
    "method": {"grpo": {"num_generations": 2}},
    "reward_funcs": [{"name": "judge", "length": {}}],
}


def of_method(method, field, name, **others):
    """A field of a method that the job then has."""
    return Escape(
        f"method.{method}.{field} outside",
        f"method.{method}.{field}",
        lambda allowed, outside, directory: {
            "method": {method: {field: str(outside / name)}},
            **others,
        },
    )


def of_reward(kind, field, name, **others):
    return Escape(
        f"reward_funcs.{kind}.{field} outside",
        f"reward_funcs.{kind}.{field}",
        lambda allowed, outside, directory: {
            **ONLINE,
            "reward_funcs": [{"name": "judge", kind: {field: str(outside / name)} | others}],
        },
    )


BY_PATH = (
    outside_path("model.path", "models/qwen3"),
    outside_path("model.tokenizer", "tokenizer"),
    outside_path("data.train", "data/short.jsonl"),
    outside_path("data.eval", "data/short.jsonl"),
    outside_path("data.cache_dir", "taken"),
    Escape(
        "data.rollouts outside",
        "data.rollouts",
        lambda allowed, outside, directory: {
            "method": ONLINE["method"],
            "data": {"rollouts": f"{outside}/data/short.jsonl"},
        },
    ),
    outside_path("training.output_dir", "taken/new"),
    outside_path("training.logging_dir", "taken"),
    outside_path("training.resume_from_checkpoint", "taken"),
    outside_path("memory.activation_offloading_dir", "taken"),
    outside_path("generation.record_to", "taken/records", **ONLINE),
    outside_path("peft.adapter_path", "models/qwen3"),
    of_method("sft", "chat_template_path", "secret.json"),
    of_method("dpo", "ref_model", "models/qwen3"),
    of_method("gkd", "teacher_model_name_or_path", "models/qwen3"),
    of_method("ppo", "value_model_path", "models/qwen3", reward_funcs=ONLINE["reward_funcs"]),
    of_reward("json_schema", "schema", "secret.json"),
    of_reward("model", "path", "models/qwen3"),
    of_reward("server", "ca_file", "secret.json", address="judge:7000"),
    Escape(
        "an absolute link",
        "model.path",
        through_link("model.path", lambda allowed, outside: outside / "models/qwen3"),
    ),
    Escape(
        "a relative link",
        "model.path",
        through_link("model.path", lambda allowed, outside: "../../outside/models/qwen3"),
    ),
    Escape(
        "a link on the way",
        "training.output_dir",
        lambda allowed, outside, directory: {
            "training.output_dir": f"{link(lambda a, o: o)(allowed, outside, directory)}/taken/new"
        },
    ),
    Escape(
        "..",
        "model.path",
        model_at(lambda allowed, outside, directory: f"{allowed}/../outside/models/qwen3"),
    ),
    Escape(
        ".. below a link",
        "training.output_dir",
        lambda allowed, outside, directory: {
            "training.output_dir": f"{allowed}/data/../../outside/taken/new"
        },
    ),
    Escape(
        "a pattern outside",
        "data.train",
        lambda allowed, outside, directory: {"data.train": f"{outside}/data/*.jsonl"},
    ),
    Escape(
        "/proc/self/root",
        "model.path",
        model_at(lambda allowed, outside, directory: f"/proc/self/root{outside}/models/qwen3"),
    ),
    Escape(
        "a link to /proc/self/root",
        "model.path",
        lambda allowed, outside, directory: {
            "model.path": f"{link(lambda a, o: '/proc/self/root')(allowed, outside, directory)}"
            f"{outside}/models/qwen3"
        },
    ),
    Escape(
        "the environment of its reader",
        "data.train",
        lambda allowed, outside, directory: {"data.train": "/proc/self/environ"},
    ),
    Escape(
        "a device",
        "data.train",
        lambda allowed, outside, directory: {"data.train": "/dev/zero"},
    ),
    Escape(
        "a socket of somebody's",
        "reward_funcs[0].server.address",
        lambda allowed, outside, directory: {
            **ONLINE,
            "reward_funcs": [
                {"name": "judge", "server": {"address": f"unix://{outside}/taken/socket"}}
            ],
        },
    ),
)


def copy_with_link(what, name, field):
    """A copy of a directory in which one file is a link to that outside."""

    def break_job(allowed, outside, directory):
        copy = directory / "copy"
        shutil.copytree(allowed / what, copy)
        (copy / name).unlink()
        target = outside / what / name
        (copy / name).symlink_to(target if target.exists() else outside / "secret.json")
        return {field: str(copy)}

    return break_job


def shard_outside(allowed, outside, directory):
    """Weights in one shard by an index, which is a link."""
    copy = directory / "copy"
    shutil.copytree(allowed / "models/qwen3", copy)
    weights = copy / "model.safetensors"
    size = int.from_bytes(weights.read_bytes()[:8], "little")
    names = json.loads(weights.read_bytes()[8 : 8 + size])
    names.pop("__metadata__", None)
    weights.unlink()
    (copy / "shard.safetensors").symlink_to(outside / "models/qwen3/model.safetensors")
    (copy / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "shard.safetensors")})
    )
    return {"model.path": str(copy)}


def fifo(allowed, outside, directory):
    os.mkfifo(directory / "pipe.jsonl")
    return {"data.train": str(directory / "pipe.jsonl")}


def fifo_as_config(allowed, outside, directory):
    os.mkfifo(directory / "config.json")
    return {"model.path": str(directory)}


def linked_data(allowed, outside, directory):
    (directory / "a.jsonl").symlink_to(outside / "data/short.jsonl")
    return {"data.train": str(directory)}


def linked_pattern(allowed, outside, directory):
    linked_data(allowed, outside, directory)
    return {"data.train": f"{directory}/*.jsonl"}


DENIED = "Permission denied"
BY_CONTENT = (
    Escape("a shard outside", "model.path", shard_outside, "outside of the model's directory"),
    Escape(
        "weights outside",
        "model.path",
        copy_with_link("models/qwen3", "model.safetensors", "model.path"),
        "outside of the model's directory",
    ),
    Escape(
        "config.json outside",
        "model.path",
        copy_with_link("models/qwen3", "config.json", "model.path"),
        DENIED,
    ),
    Escape(
        "tokenizer.json outside",
        "model.tokenizer",
        copy_with_link("tokenizer", "tokenizer.json", "model.tokenizer"),
        DENIED,
    ),
    Escape(
        "tokenizer_config.json outside",
        "model.tokenizer",
        copy_with_link("tokenizer", "tokenizer_config.json", "model.tokenizer"),
        DENIED,
    ),
    Escape("a file of a directory outside", "data.train", linked_data, DENIED),
    Escape("a file of a pattern outside", "data.train", linked_pattern, DENIED),
    Escape("a FIFO of documents", "data.train", fifo, "not a regular file"),
    Escape("a FIFO as config.json", "model.path", fifo_as_config, "is not a regular file"),
)
