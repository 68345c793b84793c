"""Job specs from what people write: dicts and job files, read as the CLI reads them."""

import difflib
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from google.protobuf import duration_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tessera.errors import InvalidJobError, Violation
from tessera.v1.coordinator_pb2 import Job
from tessera.v1.job_pb2 import JobSpec
from tessera.v1.options_pb2 import rule

State = Job.State
_TERMINAL = frozenset({Job.SUCCEEDED, Job.FAILED, Job.CANCELLED})
_INTEGERS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)


def is_terminal(state: "Job.State") -> bool:
    """Whether a job in this state has ended."""
    return state in _TERMINAL


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: `no` is a text, 1e-3 a number, and nothing is a date."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
):
    # The first that matches counts: whole numbers come before others.
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


class _Reader:
    """Fills a message by field names, and gathers every mistake."""

    def __init__(self, base: pathlib.Path) -> None:
        self.base = base
        self.violations: list[Violation] = []

    def refuse(self, path: str, message: str) -> None:
        self.violations.append(Violation(path, message))

    def fill(self, message: Message, values: Any, path: str = "") -> None:
        if not isinstance(values, Mapping):
            what = path or "the job"
            self.refuse(path, f"{what} is {values!r}, must be a section with fields")
            return
        for name, value in values.items():
            inner = f"{path}.{name}" if path else str(name)
            field = message.DESCRIPTOR.fields_by_name.get(str(name))
            if field is None:
                self.refuse(inner, self._unknown(message.DESCRIPTOR, inner, str(name)))
            elif value is not None:
                self._set(message, field, value, inner)
            elif field.message_type is None:
                self.refuse(inner, f"{inner} is None; leave it out for its default")

    @staticmethod
    def _unknown(descriptor: Descriptor, path: str, name: str) -> str:
        names = [field.name for field in descriptor.fields]
        if near := difflib.get_close_matches(name, names, 1):
            return f"{path} is not a field; did you mean {near[0]}?"
        return f"{path} is not a field; there are: {', '.join(names)}"

    def _set(self, message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
        oneof = field.containing_oneof
        is_choice = oneof is not None and len(oneof.fields) > 1
        if is_choice and (other := message.WhichOneof(oneof.name)) not in (None, field.name):
            self.refuse(path, f"{path} is given beside {other}, must be the only one of them")
        elif field.is_repeated:
            entries = (
                value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            )
            target = getattr(message, field.name)
            for index, entry in enumerate(entries):
                self._add(target, field, entry, f"{path}[{index}]")
        elif field.message_type is duration_pb2.Duration.DESCRIPTOR:
            self._set_duration(getattr(message, field.name), value, path)
        elif field.message_type is not None:
            section = getattr(message, field.name)
            section.SetInParent()
            self.fill(section, value, path)
        elif (scalar := self._scalar(field, value, path)) is not None:
            setattr(message, field.name, scalar)

    def _add(self, target: Any, field: FieldDescriptor, value: Any, path: str) -> None:
        if field.message_type is not None:
            self.fill(target.add(), value, path)
        elif (scalar := self._scalar(field, value, path)) is not None:
            target.append(scalar)

    def _set_duration(self, duration: duration_pb2.Duration, value: Any, path: str) -> None:
        text = value if isinstance(value, str) else f"{value}s"
        try:
            duration.FromJsonString(text)
        except ValueError:
            self.refuse(
                path, f'{path} is {value!r}, must be a number of seconds, as in 600 or "600s"'
            )

    def _scalar(self, field: FieldDescriptor, value: Any, path: str) -> Any:
        wanted = "a text"
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            wanted = "True or False"
            if isinstance(value, bool):
                return value
        elif isinstance(value, bool):
            pass
        elif field.cpp_type in _INTEGERS:
            wanted = "a whole number"
            if isinstance(value, int):
                return value
        elif field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            wanted = "a number"
            if isinstance(value, int | float):
                return float(value)
        elif isinstance(value, str | os.PathLike):
            return self._path(field, os.fspath(value))
        elif isinstance(value, int | float):
            # 3 is a text, too, where a text is wanted, as in YAML.
            return str(value)
        self.refuse(path, f"{path} is {value!r}, must be {wanted}")
        return None

    def _path(self, field: FieldDescriptor, value: str) -> str:
        options = field.GetOptions().Extensions[rule]
        if not options.path or not value or value in options.one_of:
            return value
        return os.path.normpath(self.base / value)


def make_spec(
    job: Mapping[str, Any] | JobSpec, base: str | os.PathLike[str] | None = None
) -> JobSpec:
    """A spec of a job as a job file nests it, or a copy of a spec.

    Relative paths are relative to `base`, by default the working directory. InvalidJobError names
    every field that does not exist or has a value of another type; the rules of values are the
    service's, which checks them when the job is submitted or planned.
    """
    if isinstance(job, JobSpec):
        spec = JobSpec()
        spec.CopyFrom(job)
        return spec
    reader = _Reader(pathlib.Path(base or ".").absolute())
    spec = JobSpec()
    reader.fill(spec, job)
    if reader.violations:
        raise InvalidJobError("the job breaks rules", violations=tuple(reader.violations))
    return spec


def load_job(path: str | os.PathLike[str]) -> JobSpec:
    """The spec in a job file, YAML or JSON. Relative paths in it are relative to its folder."""
    file = pathlib.Path(path)
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as error:
        raise InvalidJobError(f"{file}: {error}") from error
    return make_spec(values, file.absolute().parent)


def as_spec(job: Mapping[str, Any] | JobSpec | str | os.PathLike[str]) -> JobSpec:
    return load_job(job) if isinstance(job, str | os.PathLike) else make_spec(job)
