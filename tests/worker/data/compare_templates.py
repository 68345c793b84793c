"""Holds template_dump against transformers' jinja2: the templates of templates/ (or of a folder) on
generated conversations, and generated expressions. Exit status 1 where a text, a span or whether
there is an error differs.

    python compare_templates.py BUILD/tests/template_dump
        [--templates FOLDER] [--conversations 60] [--expressions 3000] [--seed 0]
        [--training NAME ...]

With --training, what training_template makes of FOLDER/NAME.jinja is held against
FOLDER/NAME_training.jinja, TRL's; the folder is TRL's chat_templates then.
"""

# ruff: noqa: SIM905
import argparse
import copy
import datetime
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers.utils import chat_template_utils

TEXTS = [
    "Hello!",
    "",
    "  padded \n\n",
    "naïve — “quotes” 日本語 🎉\u200b",
    "<think>\nfirst\n</think>\n\nthen",
    'a "quote", a \\ and a\ttab',
    "{{ x }} {% if %} {# y #}",
    "line\r\nline\x0bline\u2028line",
    "ﬁne ß İstanbul ΣΟΦΟΣ ǆ",
    "<|im_end|></s>",
]
ARGUMENTS = [
    {"city": "Zürich", "n": 2, "f": 1.5, "ok": True, "none": None},
    {},
    {"deep": {"list": [1, "a", {"k": [None, False]}], "big": 1e20, "small": 1e-7}},
    '{"already": "text"}',
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The <weather> & more",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["b", "a"]},
                    "Days": {"type": ["integer", "null"], "default": 3},
                    "items": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "empty", "parameters": {}}},
]
VALUES = {
    "s": "Some  text\nof Two lines ",
    "u": "Grüße ẞ ﬁ 日本",
    "e": "",
    "a": "<b> & 'c'",
    "n": 17,
    "m": -3,
    "z": 0,
    "f": 2.5,
    "g": -1e-9,
    "h": 12345678901234567.0,
    "t": True,
    "no": None,
    "l": [3, 1, 2, 10],
    "w": ["b", "A", "c", "B"],
    "x": [],
    "d": {"k": 1, "items": [1, 2], "B": None, "a": "v"},
    "o": [{"r": "u", "v": 1}, {"r": "a", "v": None}, {"r": "U"}],
}
FILTERS = (
    "abs|capitalize|count|default('D')|default('D', true)|dictsort|dictsort(reverse=true)|escape"
    "|first|float|float(1)|groupby('r')|groupby('v', default=0)|indent|indent(2, true)|int|int(7)"
    "|items|join|join(', ')|join('-', attribute='r')|last|length|list|lower|map('string')"
    "|map('upper')|map(attribute='v')|map(attribute='r', default='?')|max|min|reject('none')"
    "|rejectattr('v')|replace('e', '3')|replace('t', 'T', 1)|reverse|round|round(1)"
    "|round(2, 'floor')|safe|select|select('odd')|selectattr('v')|selectattr('r', 'equalto', 'u')"
    "|selectattr('v', 'defined')|sort|sort(reverse=true)|sort(attribute='r')|string|sum"
    "|sum(attribute='v')|title|tojson|tojson(indent=2)|tojson(ensure_ascii=true, sort_keys=true)"
    "|tojson(separators=(',', ':'))|trim|trim('S ')|unique|upper|wordcount|batch(2)"
    "|list|first|string|tojson"
).split("|")
TESTS = (
    "boolean|defined|divisibleby(3)|eq 17|even|false|float|ge(2)|in [17, 'b']|integer|iterable"
    "|lower|mapping|ne('x')|none|number|odd|sameas(none)|sequence|string|true|undefined|upper"
).split("|")
MEMBERS = (
    ".upper()|.lower()|.title()|.capitalize()|.strip()|.strip('S ')|.lstrip()|.rstrip('\\n ')"
    "|.split()|.split(' ')|.split('t', 1)|.rsplit('t', 1)|.splitlines()|.startswith('So')"
    "|.endswith(('x', ' '))|.find('t')|.rfind('t')|.count('t')|.replace('t', '')|.join(['a', 'b'])"
    "|.isdigit()|.isalpha()|.isupper()|.islower()|.zfill(30)|.center(31, '*')|.partition(' ')"
    "|.removeprefix('Some')|.items()|.keys()|.values()|.get('k')|.get('none', 4)|.k|.items|.none"
    "|['k']|['items']|[0]|[-1]|[99]|[1:]|[:-1]|[::-1]|[1:9:2]|[-3:]|.index(1)|.count(1)|.append(1)"
    "|.pop()|.update({})|.__class__|.format(1)|.0"
).split("|")
OPERATORS = "+|-|*|/|//|%|~|==|!=|<|<=|>|>=|and|or|in|not in|if t else".split("|")
LITERALS = ["1", "0", "2.0", "'t'", "'b'", "[1]", "(1, 2)", "{'k': 1}", "none", "true", "missing"]


NOW = datetime.datetime(2024, 2, 29, 13, 5, 9)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def random_message(rng, role):
    message = {"role": role, "content": rng.choice(TEXTS)}
    kind = rng.random()
    if kind < 0.15:
        parts = [{"type": "text", "text": rng.choice(TEXTS)} for _ in range(rng.randint(1, 3))]
        message["content"] = [{"type": "image"}, *parts] if rng.random() < 0.3 else parts
    elif kind < 0.2:
        message["content"] = None
    if role == "assistant":
        if rng.random() < 0.3:
            message[rng.choice(["reasoning_content", "thinking", "reasoning"])] = rng.choice(TEXTS)
        if rng.random() < 0.3:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": "weather", "arguments": arguments}}
                for arguments in rng.sample(ARGUMENTS, rng.randint(1, 3))
            ]
    if role == "tool" and rng.random() < 0.3:
        message["content"] = {"degrees": 21.5, "sky": ["clear", None]}
    return message


def random_conversation(rng):
    roles = ["system"] if rng.random() < 0.4 else []
    for _ in range(rng.randint(0, 4)):
        roles += ["user"] if rng.random() < 0.9 else ["developer", "user"]
        roles += ["assistant"] * (rng.random() < 0.9)
        while rng.random() < 0.25:
            roles += ["tool", "assistant"] if rng.random() < 0.6 else ["tool"]
    return [random_message(rng, role) for role in roles]


def random_variables(rng):
    # As apply_chat_template hands them on.
    messages = [
        {key: value for key, value in message.items() if value is not None}
        for message in random_conversation(rng)
    ]
    variables = {
        "messages": chat_template_utils._alias_reasoning_fields(messages),
        "tools": rng.choice([None, None, TOOLS, TOOLS[:1], []]),
        "documents": None,
        "add_generation_prompt": rng.random() < 0.3,
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    if rng.random() < 0.3:
        variables["enable_thinking"] = rng.random() < 0.5
    return variables


def random_expression(rng, depth=0):
    text = rng.choice([*VALUES, *VALUES, rng.choice(LITERALS)])
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        kind = rng.random()
        if kind < 0.35:
            text += "|" + rng.choice(FILTERS)
        elif kind < 0.7:
            text = f"({text}){rng.choice(MEMBERS)}" if "|" in text else text + rng.choice(MEMBERS)
        elif kind < 0.8:
            text = f"({text} is {rng.choice(['', 'not '])}{rng.choice(TESTS)})"
        elif depth < 2:
            other = random_expression(rng, depth + 1)
            text = f"({text} {rng.choice(OPERATORS)} {other})"
    return text


def expected(template, variables):
    variables = copy.deepcopy(variables)  # `indent` adds to a list that it is given
    arguments = [
        variables.pop(name, None)
        for name in ("messages", "tools", "documents", "add_generation_prompt")
    ]
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        text, spans = chat_template_utils._render_with_assistant_indices(
            compiled, *arguments, **variables
        )
        # Addresses of objects and the type of safe text, which only a fuzzer prints.
        return None if " at 0x" in text or "Markup(" in text else {"text": text, "generated": spans}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def is_same(wanted, got):
    # Python prints an address there, which later filters may spoil or count.
    if got.get("error", "").startswith("a range or generator has no text"):
        return True
    if wanted is None or "error" in wanted or "error" in got:
        return wanted is None or ("error" in wanted) == ("error" in got)
    return (
        wanted["text"] == got["text"] and [list(s) for s in wanted["generated"]] == got["generated"]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dump")
    parser.add_argument("--templates", default=Path(__file__).parent / "templates", type=Path)
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--expressions", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--training", nargs="+", default=[])
    args = parser.parse_args()

    chat_template_utils.datetime = Clock
    rng = random.Random(args.seed)
    # The template, what it is compared with, and the variables.
    cases = []
    names = args.training or sorted(path.stem for path in args.templates.glob("*.jinja"))
    for name in names:
        template, peer = (
            (args.templates / f"{stem}.jinja").read_text(encoding="utf-8")
            for stem in (name, name + "_training" * bool(args.training))
        )
        cases += [(template, peer, random_variables(rng)) for _ in range(args.conversations)]
    for _ in range(0 if args.training else args.expressions):
        template = "{{ " + random_expression(rng) + " }}"
        cases.append((template, template, VALUES))

    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for template, _, variables in cases:
            case = {"template": template, "variables": variables, "now": int(NOW.timestamp())}
            case["training"] = bool(args.training)
            file.write(json.dumps(case) + "\n")
        file.flush()
        printed = subprocess.run(
            [args.dump, file.name], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    got = [json.loads(line) for line in printed.split("\n") if line]
    assert len(got) == len(cases), f"{len(got)} results of {len(cases)}"

    num_different = 0
    num_errors = 0
    for (template, peer, variables), result in zip(cases, got, strict=True):
        wanted = expected(peer, variables)
        num_errors += wanted is not None and "error" in wanted
        if is_same(wanted, result):
            continue
        num_different += 1
        if num_different <= 20:
            print(f"{template[:200]!r}\n  jinja2 {str(wanted)[:300]}\n  here   {str(result)[:300]}")
    print(f"{len(cases)} renderings, {num_errors} of them errors, {num_different} different")
    sys.exit(1 if num_different or num_errors == len(cases) else 0)


if __name__ == "__main__":
    main()
