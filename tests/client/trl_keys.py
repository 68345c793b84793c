#!/usr/bin/env python3
"""Writes trl_keys.txt: every key that TRL's commands and accelerate's configuration take.

trl_keys.py > trl_keys.txt      with a Python that has trl and accelerate

`tessera import` must map, note or refuse each of them by name: import_test.cc holds it to the
list. A line is "SECTION KEY"; sections are TRL's commands, `datasets` the entries of that key,
`accelerate` its file with the keys of the sections in it.
"""

import dataclasses
import importlib
import importlib.metadata

from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from trl.scripts.utils import DatasetConfig

METHODS = ("sft", "dpo", "kto", "reward", "grpo", "rloo")
# Groups of arguments that a section of the file may hold, by the launcher's titles.
GROUPS = ("DeepSpeed Arguments", "FSDP Arguments", "ParallelismConfig Arguments")
# Those with keys of their own.
SECTIONS = ("deepspeed_config", "fsdp_config", "parallelism_config")


def keys_of_method(method):
    """All fields of the classes that the command's parser is made of."""
    parser = importlib.import_module(f"trl.scripts.{method}").make_parser()
    return sorted(
        field.name for kind in parser.dataclass_types for field in dataclasses.fields(kind)
    )


def keys_of_accelerate():
    keys = {field.name for field in dataclasses.fields(ClusterConfig)} - {*SECTIONS}
    for group in launch_command_parser()._action_groups:
        if group.title in GROUPS:
            keys |= {action.dest for action in group._group_actions}
    return sorted(keys)


def main():
    for package in ("trl", "transformers", "accelerate"):
        print(f"# {package} {importlib.metadata.version(package)}")
    for method in METHODS:
        for key in keys_of_method(method):
            print(method, key)
    for field in dataclasses.fields(DatasetConfig):
        print("datasets", field.name)
    for key in keys_of_accelerate():
        print("accelerate", key)


if __name__ == "__main__":
    main()
