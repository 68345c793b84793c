"""FORMATS: records of every format, and what to do with them. write(CASE, FOLDER) makes the files
of one, for TRL (record_formats.py) and for the engine (compare_formats.py). Those of other trainers
are in preference_cases.py."""

import dataclasses
import json
import pathlib
import shutil

FIXTURES = pathlib.Path(__file__).parent / "fixtures"

TURNS = """{{ bos_token if bos_token is defined }}
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}
{%- generation %}
{%- if m.reasoning_content and show_thinking | default(true) -%}
<think>{{ m.reasoning_content }}</think>
{% endif %}
{{- m.content }}
{%- for call in m.tool_calls %}{{ call.function | tojson }}{% endfor -%}
<|im_end|>{% endgeneration %}
{% else %}{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# Writes a prompt alone otherwise than before a completion.
THINKING = TURNS.replace(
    "{%- if add_generation_prompt %}<|im_start|>assistant\n",
    "{%- if add_generation_prompt %}<|im_start|>assistant\n<think></think>\n",
)
# What ends the assistant's turn is not counted, and text stands beside tokens' borders.
TIGHT = (
    "{% for m in messages %}{{ m.role }}:"
    "{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
)

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, None]}}}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


CHATS = [
    [turn("user", "Hello, how are you?"), turn("assistant", "Fine — merci! 🎉")],
    [
        turn("system", "Be brief."),
        turn("user", "1 + 1?"),
        turn("assistant", "2"),
        turn("user", "And\n\n twice   that?"),
        turn("assistant", "  4 ", reasoning_content="2 * 2"),
    ],
    [
        turn("user", "add"),
        turn("assistant", "", tool_calls=[CALL]),
        turn("tool", "3.5"),
        turn("assistant", "It is 3.5."),
    ],
    [turn("assistant", "I begin."), turn("user", "日本語 and naïve")],
    [turn("user", "the <|im_end|> in text"), turn("assistant", "x" * 40)],
]
PAIRS = [
    ("The sky is", " blue."),
    ("unhap", "piness and more"),  # tokens merge over the border
    ("", "nothing before"),
    ("ends with a space ", "word"),
    ("already ended", " here<|im_end|>"),
    ("<|im_end|>", "<|im_end|>"),
    ("日本", "語 🎉"),
]
TEXTS = ["Plain text.", "ends itself<|im_end|>", "  spaces  \n\n lines ", "naïve 日本語 🎉", "a"]


@dataclasses.dataclass(frozen=True)
class Case:
    records: list
    fields: dict = dataclasses.field(default_factory=dict)  # of the trainer's config
    template: object = TURNS  # of the tokenizer; a dict: several, in tokenizer_config.json
    template_file: str = ""  # the source of chat_template_path
    tokenizer: str = "qwen"
    trainer: str = "sft"


def split_chats():
    return [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in CHATS if len(chat) > 1]


def tokens(**columns):
    ids = [5, 17, 256, 99, 300]
    return [{"input_ids": ids, **columns}, {"input_ids": ids[::-1], **columns}]


def pair_records(**more):
    return [{"prompt": prompt, "completion": completion, **more} for prompt, completion in PAIRS]


MESSAGES = [{"messages": chat} for chat in CHATS]
WITH_TOOLS = [
    {"messages": CHATS[2], "tools": [TOOL]},
    {"messages": CHATS[1], "tools": [TOOL, TOOL]},
]
FORMATS = {
    "text": Case([{"text": text} for text in TEXTS]),
    "text_bos": Case(
        [{"text": text} for text in TEXTS], tokenizer="llama3", fields={"eos_token": "<|eot_id|>"}
    ),
    "text_field": Case([{"body": text} for text in TEXTS], {"dataset_text_field": "body"}),
    "text_eos_token": Case([{"text": text} for text in TEXTS], {"eos_token": "<|im_start|>"}),
    "text_truncated": Case([{"text": text} for text in TEXTS], {"max_length": 4}),
    "pairs": Case(pair_records()),
    "pairs_bos": Case(pair_records(), tokenizer="llama3"),
    "pairs_whole": Case(pair_records(), {"completion_only_loss": False}),
    "pairs_truncated": Case(pair_records(), {"max_length": 3}),
    "pairs_with_text": Case(pair_records(text="unused") + pair_records(text="used<|im_end|>")),
    "messages": Case(MESSAGES),
    "messages_assistant": Case(MESSAGES, {"assistant_only_loss": True}),
    "messages_assistant_tight": Case(MESSAGES, {"assistant_only_loss": True}, template=TIGHT),
    "messages_assistant_truncated": Case(MESSAGES, {"assistant_only_loss": True, "max_length": 12}),
    "messages_bos": Case(MESSAGES, {"assistant_only_loss": True}, tokenizer="llama3"),
    "messages_tools": Case(WITH_TOOLS),
    "messages_tools_text": Case(
        [{"messages": row["messages"], "tools": json.dumps(row["tools"])} for row in WITH_TOOLS]
    ),
    "messages_kwargs": Case(
        [{"messages": CHATS[1], "chat_template_kwargs": {"show_thinking": False}}]
    ),
    "messages_named": Case(WITH_TOOLS, template={"default": TURNS, "tool_use": "tools! " + TURNS}),
    "messages_template_file": Case(
        MESSAGES, {"assistant_only_loss": True}, template="{{ 1 }}", template_file=TURNS
    ),
    "conversations": Case(
        [
            {"conversations": [{"from": m["role"], "value": m["content"]} for m in chat]}
            for chat in CHATS
        ]
    ),
    "chat_pairs": Case(split_chats()),
    "chat_pairs_thinking": Case(split_chats(), template=THINKING),
    "chat_pairs_assistant": Case(split_chats()[:3], {"assistant_only_loss": True}),
    "chat_pairs_assistant_whole": Case(
        split_chats()[:3], {"assistant_only_loss": True, "completion_only_loss": False}
    ),
    "chat_pairs_tools": Case([{**split_chats()[2], "tools": [TOOL]}]),
    "tokens": Case(tokens()),
    "tokens_labels": Case([{"input_ids": [5, 17, 256], "labels": [-100, 17, 256]}]),
    "tokens_completion_mask": Case(tokens(completion_mask=[0, 0, 1, 1, 1])),
    "tokens_completion_only": Case(
        tokens(completion_mask=[0, 0, 1, 1, 1]), {"completion_only_loss": True}
    ),
    "tokens_assistant_masks": Case(tokens(assistant_masks=[0, 1, 1, 0, 1])),
}


def write(case, folder):
    """Returns the path of the records. Beside it are tokenizer/ and, where wanted, other.jinja."""
    shutil.copytree(FIXTURES / case.tokenizer, folder / "tokenizer")
    config_path = folder / "tokenizer" / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    if isinstance(case.template, dict):
        config["chat_template"] = [
            {"name": name, "template": text} for name, text in case.template.items()
        ]
    else:
        config["chat_template"] = case.template
    config_path.write_text(json.dumps(config), encoding="utf-8")
    if case.template_file:
        (folder / "other.jinja").write_text(case.template_file, encoding="utf-8")
    path = folder / "records.jsonl"
    lines = [json.dumps(record, ensure_ascii=False) for record in case.records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def options(case, folder):
    """The case's fields of the trainer's config."""
    given = {"max_length": None, **case.fields}
    if case.template_file:
        given["chat_template_path"] = str(folder / "other.jinja")
    return given
