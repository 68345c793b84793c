"""Records of the parity cases that are more than a text: pairs, and conversations."""

from bpe import EOS, PAD, SPECIAL_TOKENS, TURN, VOCAB_SIZE
from corpus import document
from draws import Draws
from rollouts import make_rollouts

# Each message ends with a token of its own. What is inside {% generation %} is the assistant's.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message.role }}: {{ message.content }}" + TURN + "\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def message(role, content):
    return {"role": role, "content": content}


def pairs(seed, count):
    """Of text without a prompt; a few are longer than the cases allow."""
    draws = Draws(seed)
    rows = [{"chosen": document(draws, 4), "rejected": document(draws, 4)} for _ in range(count)]
    rows[2]["chosen"] += EOS  # gets no second one
    rows[5]["rejected"] += PAD  # is scored at the EOS behind it all the same
    rows[7] = {"chosen": "", "rejected": "x"}
    rows[9]["chosen"] = document(draws, 9) * 3
    return rows


def pairs_with_margins(seed, count):
    draws = Draws(seed)
    return [
        {
            "prompt": document(draws, 2),
            "chosen": document(draws, 2),
            "rejected": document(draws, 3),
            "margin": (draws.below(9) - 2) / 4,
        }
        for _ in range(count)
    ]


def pairs_of_chats(seed, count):
    draws = Draws(seed)
    return [
        {
            "prompt": [message("user", document(draws, 2))],
            "chosen": [message("assistant", document(draws, 2))],
            "rejected": [message("assistant", document(draws, 2))],
        }
        for _ in range(count)
    ]


def pairs_of_tokens(seed, count):
    """Some end with padding, which a document is not scored at; one is nothing else."""
    draws = Draws(seed)
    pad = VOCAB_SIZE - len(SPECIAL_TOKENS)

    def tokens():
        kept = [draws.below(pad) for _ in range(2 + draws.below(30))]
        return kept + [pad] * draws.below(3)

    rows = [{"chosen_ids": tokens(), "rejected_ids": tokens()} for _ in range(count)]
    rows[4]["rejected_ids"] = [pad] * 3
    return rows


def preferences(seed, count):
    """With prompts; some are longer than the cases allow."""
    draws = Draws(seed)
    rows = [
        {
            "prompt": document(draws, 2),
            "chosen": " " + document(draws, 3),
            "rejected": " " + document(draws, 3),
        }
        for _ in range(count)
    ]
    rows[1]["chosen"] = " yes"
    rows[3]["rejected"] = " " + document(draws, 9) * 3
    rows[6]["prompt"] = document(draws, 9) * 2
    return rows


def judged(seed, count):
    """Completions that are desirable or not; now and then all of a batch are of one kind."""
    draws = Draws(seed)
    return [
        {
            "prompt": document(draws, 2),
            "completion": " " + document(draws, 3),
            "label": i % 40 >= 15 and draws.below(3) > 0,
        }
        for i in range(count)
    ]


def chats(seed, count):
    """Of one question and answer, or of two."""
    draws = Draws(seed)
    return [
        {
            "messages": [
                message(role, document(draws, 2))
                for role in ["user", "assistant"] * (1 + draws.below(2))
            ]
        }
        for _ in range(count)
    ]


def make_records():
    return {
        "pairs": pairs(11, 110),
        "pairs_few": pairs(12, 31),
        "pairs_margins": pairs_with_margins(13, 100),
        "pairs_chats": pairs_of_chats(14, 100),
        "pairs_tokens": pairs_of_tokens(17, 40),
        "chats": chats(15, 110),
        "chats_few": chats(16, 31),
        "preferences": preferences(18, 60),
        "preferences_few": preferences(19, 20),
        "judged": judged(20, 80),
        "judged_few": judged(21, 40),
    } | make_rollouts()
