"""Jobs with one thing wrong each, and what a user must be told."""

import dataclasses
import json
import re
from collections.abc import Callable

from breaking import (
    alias_bomb,
    delete,
    diverge,
    documents,
    edit,
    edit_header,
    edit_json,
    empty_directory,
    fill_the_disk,
    in_yaml,
    lines_with,
    no_eos,
    output_below_a_file,
    poison,
    remove_field,
    rename_tensor,
    set_field,
    small_vocabulary,
    swap_shape,
)

SUBMIT, FILE, RUN = "refused when submitted", "refused by reading the file", "failed"


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    stage: str
    # Of the field at fault. In a file that cannot be read as a job there is none.
    field: str
    # What the error says.
    pattern: str
    break_job: Callable
    # Of the failure, where the job is taken and fails.
    kind: str = "USER"
    # Options of the tmpfs that the output directory is on. Empty: an ordinary directory.
    mount: str = ""
    # What the run may leave in the output directory.
    leaves: tuple = ()

    def matches(self, text):
        return re.search(self.pattern, text) is not None


MODEL = [
    Case(
        "no model directory",
        SUBMIT,
        "model.path",
        r"none is not a directory",
        set_field("model.path", "/nowhere/none"),
    ),
    Case(
        "the model is a file",
        SUBMIT,
        "model.path",
        r"data\.jsonl is not a directory",
        lambda job, directory: job["model"].update(path=job["data"]["train"]),
    ),
    Case(
        "no config.json",
        SUBMIT,
        "model.path",
        r"config\.json cannot be read",
        delete("model/config.json"),
    ),
    Case(
        "malformed config.json",
        SUBMIT,
        "model.path",
        r"config\.json is not a JSON object",
        edit("model/config.json", lambda data: data[:-10]),
    ),
    Case(
        "unknown model_type",
        SUBMIT,
        "model.path",
        r'model_type.*"?mamba',
        edit_json("model/config.json", lambda config: config.update(model_type="mamba")),
    ),
    Case(
        "no hidden_size",
        SUBMIT,
        "model.path",
        r"config\.json has no hidden_size",
        edit_json("model/config.json", lambda config: config.pop("hidden_size")),
    ),
    Case(
        "negative hidden_size",
        SUBMIT,
        "model.path",
        r"hidden_size.*-64",
        edit_json("model/config.json", lambda config: config.update(hidden_size=-64)),
    ),
    Case(
        "no weights",
        SUBMIT,
        "model.path",
        r"holds neither model\.safetensors nor",
        delete("model/model.safetensors"),
    ),
    Case(
        "truncated weights",
        SUBMIT,
        "model.path",
        r"model\.safetensors: it is truncated",
        edit("model/model.safetensors", lambda data: data[:-1000]),
    ),
    Case(
        "header too long",
        SUBMIT,
        "model.path",
        r"its header would be \d+ bytes",
        edit("model/model.safetensors", lambda data: (1 << 40).to_bytes(8, "little") + data[8:]),
    ),
    Case(
        "wrong shape",
        SUBMIT,
        "model.path",
        r"tensor model\.layers\.0\.mlp\.up_proj\.weight has shape \[64, 96\].*\[96, 64\]",
        edit_header(swap_shape),
    ),
    Case(
        "missing tensor",
        SUBMIT,
        "model.path",
        r"no tensor model\.layers\.1\.mlp\.up_proj\.weight",
        edit_header(rename_tensor),
    ),
    Case(
        "no tokenizer.json",
        SUBMIT,
        "model.tokenizer",
        r"tokenizer\.json",
        delete("tokenizer/tokenizer.json"),
    ),
    Case(
        "malformed tokenizer.json",
        SUBMIT,
        "model.tokenizer",
        r"tokenizer\.json: is not valid JSON",
        edit("tokenizer/tokenizer.json", lambda data: data[:5000]),
    ),
    Case("no EOS token", SUBMIT, "model.tokenizer", r"eos_token", no_eos),
    Case(
        "EOS token not in the vocabulary",
        SUBMIT,
        "method.sft.eos_token",
        r'"<\|nowhere\|>" is not in the vocabulary',
        set_field("method.sft.eos_token", "<|nowhere|>"),
    ),
    Case(
        "token beyond the vocabulary",
        SUBMIT,
        "data.train",
        r"data\.jsonl:1: the tokenizer gives .* the id \d+.*300",
        small_vocabulary,
    ),
    Case(
        "NaN in the weights",
        RUN,
        "training.learning_rate",
        r"the loss is nan at step 1 ",
        edit("model/model.safetensors", poison),
    ),
]
DATA = [
    Case(
        "no data file",
        SUBMIT,
        "data.train",
        r"none\.jsonl: No such file",
        set_field("data.train", "/nowhere/none.jsonl"),
    ),
    Case(
        "the data is an empty directory",
        SUBMIT,
        "data.train",
        r"there are no \.jsonl, \.json or \.parquet files in it",
        empty_directory,
    ),
    Case("empty dataset", SUBMIT, "data.train", r"there are no documents in it", documents([])),
    Case(
        "blank lines only",
        SUBMIT,
        "data.train",
        r"there are no documents in it",
        documents([b"", b"  ", b"\t", b""]),
    ),
    Case(
        "malformed line 17",
        SUBMIT,
        "data.train",
        r"data\.jsonl:17: not valid JSON",
        lines_with(17, b'{"text": "cut off'),
    ),
    Case(
        "line 17 is a list",
        SUBMIT,
        "data.train",
        r"data\.jsonl:17: not a JSON object",
        lines_with(17, b'["text"]'),
    ),
    Case(
        "no text at line 5",
        SUBMIT,
        "data.train",
        r'data\.jsonl:5: there is no field "text"',
        lines_with(5, b'{"content": "x"}'),
    ),
    Case(
        "text is a number",
        SUBMIT,
        "data.train",
        r'data\.jsonl:9: the field "text" is not a string',
        lines_with(9, b'{"text": 7}'),
    ),
    Case(
        "invalid UTF-8",
        SUBMIT,
        "data.train",
        r"data\.jsonl:3: .*UTF-8",
        lines_with(3, b'{"text": "\xff\xfe"}'),
    ),
    Case(
        "no held-out file",
        SUBMIT,
        "data.eval",
        r"none\.jsonl: No such file",
        set_field("data.eval", "/nowhere/none.jsonl"),
    ),
    Case(
        "malformed line far down",
        RUN,
        "data.train",
        r"data\.jsonl:1999: not valid JSON",
        lines_with(1999, b"{", count=2000),
    ),
]
FILES = [
    Case(
        "unknown field",
        FILE,
        "",
        r":\d+:\d+: .*learning_rat is not a field; did you mean "
        r"learning_rate\?",
        in_yaml("learning_rate:", "learning_rat:"),
    ),
    Case(
        "wrong type",
        FILE,
        "",
        r":\d+:\d+: training\.max_steps is .*must be",
        in_yaml("max_steps: 4", "max_steps: many"),
    ),
    Case(
        "a list for a section",
        FILE,
        "",
        r":\d+:\d+: parallelism is .*must be",
        lambda job, directory: json.dumps(job | {"parallelism": [2]}),
    ),
    Case(
        "two methods",
        FILE,
        "",
        r":\d+:\d+: method holds sft and dpo, must hold exactly one",
        lambda job, directory: json.dumps(job | {"method": {"sft": {}, "dpo": {}}}),
    ),
    Case(
        "a method twice",
        FILE,
        "",
        r":\d+:\d+: .*sft.* twice",
        in_yaml("  sft:\n", "  sft: {}\n  sft:\n"),
    ),
    Case("not YAML", FILE, "", r":\d+:\d+: ", lambda job, directory: "name: [unclosed\n"),
    Case("alias bomb", FILE, "", r":\d+:\d+: .*alias", alias_bomb),
    Case("empty file", FILE, "", r".", lambda job, directory: ""),
]
RULES = [
    Case(
        "no method",
        SUBMIT,
        "method",
        r"method is empty, must hold exactly one",
        set_field("method", {}),
    ),
    Case(
        "unknown schedule",
        SUBMIT,
        "training.lr_scheduler_type",
        r'training\.lr_scheduler_type is "cyclic", must be one of',
        set_field("training.lr_scheduler_type", "cyclic"),
    ),
    Case(
        "negative learning rate",
        SUBMIT,
        "training.learning_rate",
        r"training\.learning_rate is -0\.001, must be",
        set_field("training.learning_rate", -1e-3),
    ),
    Case(
        "no steps",
        SUBMIT,
        "training.max_steps",
        r"training\.max_steps is 0, must be above 0",
        set_field("training.max_steps", 0),
    ),
    Case(
        "no ranks",
        SUBMIT,
        "parallelism.num_processes",
        r"parallelism\.num_processes is 0, must be",
        set_field("parallelism.num_processes", 0),
    ),
    Case(
        "impossible mesh",
        SUBMIT,
        "parallelism.num_processes",
        r"num_processes is 4, must be .* = 1 \* 3 \* 1 = 3",
        set_field("parallelism", {"num_processes": 4, "dp_shard_size": 3}),
    ),
    Case("bad name", SUBMIT, "name", r'name is "a/b", must hold only', set_field("name", "a/b")),
    Case(
        "no output directory",
        SUBMIT,
        "training.output_dir",
        r"training\.output_dir is missing",
        remove_field("training.output_dir"),
    ),
]
MACHINE = [
    Case(
        "output below a file",
        SUBMIT,
        "training.output_dir",
        r"is not a writable directory",
        output_below_a_file,
    ),
    Case(
        "read-only file system",
        SUBMIT,
        "training.output_dir",
        r"is not a writable directory",
        lambda job, directory: None,
        mount="size=64m,ro",
    ),
    Case(
        "full disk",
        SUBMIT,
        "training.output_dir",
        r"has [\d.]+ \w+ free, and the job needs [\d.]+ \w+",
        lambda job, directory: None,
        mount="size=1m",
    ),
    Case(
        "disk full while training",
        RUN,
        "training.output_dir",
        r"checkpoint-\d.*No space left on device",
        fill_the_disk,
        mount="size=5m",
        leaves=("checkpoint-1", "checkpoint-2"),
    ),
    Case(
        "no such device",
        SUBMIT,
        "resources.device",
        r'resources\.device is "cuda", and no connected node has such a device',
        set_field("resources.device", "cuda"),
    ),
    Case(
        "more ranks than devices",
        SUBMIT,
        "parallelism.num_processes",
        r"num_processes is 64, must be at most the number of cpu devices of all nodes, which is 2",
        set_field("parallelism.num_processes", 64),
    ),
    Case(
        "infinite loss",
        RUN,
        "training.learning_rate",
        r"(loss|gradient norm) is (nan|infinite) at step \d+ with .*learning_rate = 1e\+30;",
        diverge,
    ),
]
CASES = MODEL + DATA + FILES + RULES + MACHINE
