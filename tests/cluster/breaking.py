"""Ways to break a good job.

A way is a function break_job(job, directory). The job is as in a job file; the directory belongs to
it, and holds the copy of a model and its tokenizer that the job uses. Where the function returns
text, that is the job file.
"""

import json
import pathlib
import sys

from jobs import models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import job_fields


def set_field(path, value):
    """Breaks a job by one field, a.b.c, of its file."""

    def break_job(job, _directory):
        job_fields.set_fields(job, {path: value})

    return break_job


def remove_field(path):
    return lambda job, _directory: job_fields.remove_field(job, path)


def empty_directory(job, directory):
    (directory / "empty").mkdir()
    job["data"]["train"] = str(directory / "empty")


def edit(name, change):
    """Breaks a file of the model or the tokenizer: change(bytes) -> bytes."""

    def break_job(_job, directory):
        path = directory / name
        path.write_bytes(change(path.read_bytes()))

    return break_job


def delete(name):
    return lambda _job, directory: (directory / name).unlink()


def edit_json(name, change):
    def apply(data):
        value = json.loads(data)
        change(value)
        return json.dumps(value).encode()

    return edit(name, apply)


def edit_header(change):
    """Breaks the header of the weights: change(header) changes it in place."""

    def apply(data):
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + size :]

    return edit("model/model.safetensors", apply)


def swap_shape(header):
    header["model.layers.0.mlp.up_proj.weight"]["shape"].reverse()


def rename_tensor(header):
    header["model.layers.1.mlp.other.weight"] = header.pop("model.layers.1.mlp.up_proj.weight")


def poison(data):
    return data[:-4] + b"\0\0\xc0\x7f"  # NaN


def small_vocabulary(_job, directory):
    config = models.MODELS["qwen3"] | {"vocab_size": 300, "eos_token_id": 299, "pad_token_id": 298}
    models.write_model(directory / "model", "small", config)


def no_eos(_job, directory):
    path = directory / "tokenizer" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["eos_token"]
    path.write_text(json.dumps(config))


def documents(lines):
    """Trains on these lines."""

    def break_job(job, directory):
        path = directory / "data.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        job["data"]["train"] = str(path)

    return break_job


def lines_with(number, line, count=40):
    good = [json.dumps({"text": f"row {i}"}).encode() for i in range(1, count + 1)]
    return documents([*good[: number - 1], line, *good[number:]])


def in_yaml(find, replacement):
    """A YAML file of the job, with a piece of its text replaced."""

    def break_job(job, _directory):
        text = to_yaml(job)
        if find not in text:
            raise AssertionError(f"{find!r} is not in {text}")
        return text.replace(find, replacement)

    return break_job


def to_yaml(value, indent=""):
    return "".join(
        f"{indent}{key}:\n{to_yaml(entry, indent + '  ')}"
        if isinstance(entry, dict)
        else f"{indent}{key}: {json.dumps(entry)}\n"
        for key, entry in value.items()
    )


def alias_bomb(_job, _directory):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join(lines) + "\n"


def output_below_a_file(job, directory):
    (directory / "file").write_text("")
    job["training"]["output_dir"] = str(directory / "file" / "output")


def diverge(job, _directory):
    job["training"] |= {"learning_rate": 1e30, "max_steps": 20, "max_grad_norm": 0}


def fill_the_disk(job, _directory):
    job["training"] |= {"save_steps": 1, "max_steps": 10}
    job["resources"] = {"max_restarts": 0}
