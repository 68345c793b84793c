"""Prints docs/job-file.md from the protos: type, default, range and comment of each field.

gen_job_docs.py --write     write docs/job-file.md
gen_job_docs.py --check     exit 1 when docs/job-file.md is not what --write would write
"""

import pathlib
import re
import sys
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROTO = ROOT / "proto/tessera/v1/job.proto"
PAGE = ROOT / "docs/job-file.md"

INTRO = """\
<!-- Written by scripts/gen_job_docs.py from job.proto: change that, then `make docs`. -->

# The job file

A job file is YAML or JSON with the fields below;
[examples/demo/sft-demo.yaml](../examples/demo/sft-demo.yaml) is a whole one. The same names are
those of the messages in `proto/tessera/v1/job.proto`, of the JSON that `tessera get` prints, and
of errors, which name a field by its path: `training.learning_rate`.

- Names, meanings and defaults are those of TRL and transformers, where they have one.
- A field that is absent takes its default. An unknown field is an error that names its line.
- Relative paths are relative to the job file.
- A duration is written in seconds with an `s`: `600s`.
"""


@dataclass
class Field:
    name: str
    type: str
    comment: str
    rule: dict[str, list[str]]
    repeated: bool


@dataclass
class Message:
    name: str
    comment: str
    fields: list[Field] = field(default_factory=list)


_MESSAGE = re.compile(r"^message (?P<name>\w+) \{")
_FIELD = re.compile(
    r"^\s+(?P<label>optional |repeated )?(?P<type>[\w.<>, ]+?) (?P<name>\w+) = \d+\s*"
    r"(?:\[(?P<options>.*)\])?;",
)
_RULE = re.compile(r'(?P<key>\w+): (?P<value>"[^"]*"|[\w.+-]+)')


def read_rule(options: str | None) -> dict[str, list[str]]:
    rule: dict[str, list[str]] = {}
    for match in _RULE.finditer(options or ""):
        rule.setdefault(match["key"], []).append(match["value"].strip('"'))
    return rule


def read_messages(text: str) -> list[Message]:
    """The top-level messages, in order. A comment belongs to the declaration after it."""
    messages: list[Message] = []
    comment: list[str] = []
    pending = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("//"):
            comment.append(stripped.removeprefix("//").strip())
            continue
        pending = f"{pending} {stripped}" if pending else line
        opened = _MESSAGE.match(pending)
        declared = _FIELD.match(pending)
        if opened:
            messages.append(Message(opened["name"], " ".join(comment)))
        elif declared and messages:
            repeated = (declared["label"] or "").strip() == "repeated"
            rule = read_rule(declared["options"])
            named = Field(declared["name"], declared["type"], " ".join(comment), rule, repeated)
            messages[-1].fields.append(named)
        if not pending.strip() or pending.rstrip().endswith((";", "{", "}")):
            pending, comment = "", []
    return messages


TYPE_NAMES = {
    "int32": "integer",
    "int64": "integer",
    "double": "number",
    "float": "number",
    "google.protobuf.Duration": "duration",
}


def default_of(rule: dict[str, list[str]]) -> str:
    if "required" in rule:
        return "required"
    return f"`{rule['default'][0]}`" if "default" in rule else "absent"


def range_of(entry: Field) -> str:
    rule, text = entry.rule, entry.type == "string"
    if "one_of" in rule:
        words = ", ".join(f"`{value}`" for value in rule["one_of"])
        return f"{words}, a path" if "path" in rule else words
    low, high = (rule.get(key, [None])[0] for key in ("min", "max"))
    parts = []
    if low is not None:
        parts.append(f"{'>' if 'exclusive_min' in rule else '≥'} {low}")
    if high is not None:
        parts.append(f"≤ {high}")
    span = ", ".join(parts)
    if entry.repeated and span:
        span = f"{span} entries"
    elif text and span:
        span = f"{span} characters"
    return f"a path; {span}".rstrip("; ") if "path" in rule else span


def section(path: str, message: Message) -> list[str]:
    lines = [f"## {path}", ""]
    if message.comment:
        lines += [message.comment, ""]
    lines += ["| field | type | default | allowed | |", "|---|---|---|---|---|"]
    for entry in message.fields:
        type_name = TYPE_NAMES.get(entry.type, entry.type)
        if entry.repeated:
            type_name = f"list of {type_name}"
        comment = entry.comment.replace("|", "\\|")
        cells = (f"`{entry.name}`", type_name, default_of(entry.rule), range_of(entry), comment)
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def sections(messages: dict[str, Message], name: str, path: str) -> list[str]:
    """A section for the plain fields of a message, then one for each message among its fields."""
    message = messages[name]
    plain = [entry for entry in message.fields if entry.type not in messages]
    lines = []
    if plain:
        lines += section(path or "Top level", Message(name, message.comment if path else "", plain))
    elif path:
        lines += [f"## {path}", "", message.comment, ""]
    for entry in message.fields:
        if entry.type in messages:
            name = f"{entry.name}[]" if entry.repeated else entry.name
            below = f"{path}.{name}" if path else name
            lines += sections(messages, entry.type, below)
    return lines


def page() -> str:
    messages = {message.name: message for message in read_messages(PROTO.read_text("utf-8"))}
    return INTRO + "\n" + "\n".join(sections(messages, "JobSpec", "")).rstrip() + "\n"


def main() -> int:
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), "utf-8")
        return 0
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text("utf-8") == page():
            return 0
        print("docs/job-file.md:1: stale: the protos have changed; run `make docs`")
        return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
