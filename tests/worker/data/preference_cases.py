"""PREFERENCES: cases of format_cases.py for DPOTrainer, KTOTrainer, RewardTrainer and the collator
of GKDTrainer."""

from format_cases import CHATS, THINKING, TOOL, Case, turn

# prompt, chosen, rejected
TRIPLES = [
    ("The sky is", " blue.", " green, I say."),
    ("unhap", "piness and more", "py"),  # tokens merge over the border, in one of the two
    ("", "nothing before", "but this"),
    ("ends with a space ", "word", "other words"),
    ("already ended", " here<|im_end|>", ""),
    ("日本", "語 🎉", "人"),
    ("a longer prompt than others, of many words and tokens", " short", " also short"),
]
# Without a prompt of their own.
IMPLICIT = [
    ("The sky is blue.", "The sky is green."),
    ("ends with the same", "ends with the same but longer"),
    ("twice the same", "twice the same"),
    ("日本語", "日本人"),
    ("naïve é", "naïve è"),  # the characters share a byte
    ("nothing alike", "here"),
    ("a  b", "a  c"),
    ("a", "b"),
]
ANSWERS = [
    (chat[:-1], chat[-1:], [turn("assistant", "No — nein!"), turn("user", "Why?")])
    for chat in CHATS[:4]
]


def triples(**more):
    return [{"prompt": p, "chosen": c, "rejected": r, **more} for p, c, r in TRIPLES]


def pairs():
    return [{"chosen": chosen, "rejected": rejected} for chosen, rejected in IMPLICIT]


def chat_triples(**more):
    return [{"prompt": p, "chosen": c, "rejected": r, **more} for p, c, r in ANSWERS]


def chat_pairs():
    return [{"chosen": p + c, "rejected": p + r} for p, c, r in ANSWERS]


def singles(records):
    """Each record's completions in turns."""
    return [
        {"prompt": record["prompt"], "completion": record[name], "label": name == "chosen"}
        for record in records
        for name in ("chosen", "rejected")
    ][:-1]


def pair_tokens(chosen, rejected, **more):
    return [
        {chosen: [5, 17, 256], rejected: [5, 99], **more},
        {chosen: [300], rejected: [7, 8, 9, 10], **more},
    ]


def dpo(records, fields=None, **more):
    return Case(records, fields or {}, trainer="dpo", **more)


def kto(records, fields=None, **more):
    return Case(
        records, {"per_device_train_batch_size": 3, **(fields or {})}, trainer="kto", **more
    )


def reward(records, fields=None, **more):
    return Case(records, fields or {}, trainer="reward", **more)


def gkd(records, fields=None, **more):
    return Case(records, fields or {}, trainer="gkd", **more)


MESSAGES = [{"messages": chat} for chat in CHATS]
IDS = [5, 17, 256, 99, 300, 41]
PREFERENCES = {
    "dpo": dpo(triples()),
    "dpo_bos": dpo(triples(), tokenizer="llama3"),
    "dpo_implicit": dpo(pairs()),
    "dpo_implicit_bos": dpo(pairs(), tokenizer="llama3"),
    "dpo_truncated": dpo(triples(), {"max_length": 5}),
    "dpo_keep_end": dpo(triples(), {"max_length": 5, "truncation_mode": "keep_end"}),
    "dpo_chat": dpo(chat_triples()),
    "dpo_chat_bos": dpo(chat_triples(), tokenizer="llama3"),
    "dpo_chat_thinking": dpo(chat_triples(), template=THINKING),
    "dpo_chat_implicit": dpo(chat_pairs()),
    "dpo_chat_truncated": dpo(chat_triples(), {"max_length": 24}),
    "dpo_chat_tools": dpo(chat_triples(tools=[TOOL])),
    "dpo_chat_kwargs": dpo(chat_triples(chat_template_kwargs={"show_thinking": False})),
    "kto": kto(singles(triples())),
    "kto_bos": kto(singles(triples()), tokenizer="llama3"),
    "kto_truncated": kto(singles(triples()), {"max_length": 5}),
    "kto_pairs": kto(triples()),
    "kto_pairs_truncated": kto(triples(), {"max_length": 5}),
    "kto_implicit": kto(pairs()),
    "kto_thousands": kto(
        [
            {"prompt": "a", "chosen": chr(98 + i % 20), "rejected": "c" * (i % 3)}
            for i in range(1010)
        ],
        {"per_device_train_batch_size": 7},
    ),
    "kto_apo": kto(singles(triples()), {"loss_type": "apo_zero_unpaired"}),
    "kto_chat": kto(singles(chat_triples())),
    "kto_chat_thinking": kto(singles(chat_triples()), template=THINKING),
    "kto_chat_pairs": kto(chat_triples(tools=[TOOL])),
    "kto_chat_implicit": kto(chat_pairs()),
    "reward": reward(pairs()),
    "reward_bos": reward(pairs(), tokenizer="llama3"),
    "reward_prompt": reward(triples()),
    "reward_eos": reward(triples(), {"eos_token": "<|im_start|>"}),
    "reward_truncated": reward(triples(), {"max_length": 14}),
    "reward_margin": reward([{**row, "margin": i / 4 - 1} for i, row in enumerate(triples())]),
    "reward_chat": reward(chat_pairs()),
    "reward_chat_prompt": reward(chat_triples(tools=[TOOL])),
    "reward_tokens": reward(pair_tokens("chosen_ids", "rejected_ids", margin=0.5)),
    "reward_tokens_legacy": reward(
        pair_tokens("chosen_input_ids", "rejected_input_ids"), {"max_length": 3}
    ),
    "gkd": gkd(MESSAGES),
    "gkd_bos": gkd(MESSAGES, tokenizer="llama3"),
    "gkd_thinking": gkd(MESSAGES, template=THINKING),
    "gkd_truncated": gkd(MESSAGES, {"max_length": 36}),
    "gkd_prompt": gkd(
        [{**row, "prompt": "<|im_start|>user\nHello, how are"} for row in MESSAGES[:1]]
    ),
    "gkd_tools": gkd([{"messages": CHATS[2], "tools": [TOOL]}]),
    "gkd_tokens": gkd([{"input_ids": IDS, "completion_mask": [0, 0, 1, 1, 0, 1], "prompt": "p"}]),
    "gkd_tokens_prompt": gkd([{"input_ids": IDS, "prompt": "two words"}]),
    "gkd_tokens_messages": gkd([{"input_ids": list(range(80)), "messages": CHATS[0]}]),
}
