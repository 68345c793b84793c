"""Writes fixtures/: a tiny tokenizer of each family there is, as a Hugging Face directory, and what
AutoTokenizer makes of it (auto.json, where it is not tokenizer.json) and of strings
(expected.jsonl). By hand:

    python make_tokenizers.py [NAME...]

Needs tokenizers 0.23, transformers 5.23, sentencepiece and protobuf. The tests need none of them.
"""

import json
import os
import random
import shutil
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from compare_tokenizers import random_text, words_of
from make_corpus import CORPUS, EDGES
from make_sentencepiece import SENTENCEPIECE_BUILDERS, charsmap
from patterns import CL100K, DEEPSEEK, LLAMA3, O200K, QWEN, TEKKEN
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer

FIXTURES = Path(__file__).parent / "fixtures"
TRAINING = CORPUS * 4
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NUM_STRINGS = 30
MOST_PARTS = 8


def byte_level(vocab_size, split, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def around(tokenizer, single):
    names = [part for part in single.split() if not part.startswith("$")]
    return processors.TemplateProcessing(
        single=single, pair=None, special_tokens=[(n, tokenizer.token_to_id(n)) for n in names]
    )


def metaspace_bpe(vocab_size, special, spans_words=False):
    """SentencePiece's kind of BPE, trained by tokenizers: U+2581 at the front of words, bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    if not spans_words:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special, *BYTES],
        limit_alphabet=90,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in BYTES]
    return Tokenizer.from_str(json.dumps(data))


def gpt2():
    tokenizer = byte_level(420, [])
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    tokenizer.add_tokens([AddedToken("<tool>", lstrip=True), AddedToken("river", single_word=True)])
    return tokenizer, {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, "gpt2"


def llama3():
    tokenizer = byte_level(500, [isolated(LLAMA3)])
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = True
    data["model"]["vocab"]["\u0120ungatherable"] = len(data["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True, add_prefix_space=True),
            around(tokenizer, "<|begin_of_text|> $A"),
        ]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
    }
    return tokenizer, config, "llama"


def qwen():
    tokenizer = byte_level(500, [isolated(QWEN)])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False, add_prefix_space=False)
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    return tokenizer, config, "qwen3"


def qwen_added():
    tokenizer, config, model_type = qwen()
    tokenizer.add_tokens(["<tool_call>"])
    config["additional_special_tokens"] = ["<|im_start|>", "<|im_end|>", "<|box|>"]
    config["added_tokens_decoder"] = added_tokens_decoder(tokenizer)
    config["added_tokens_decoder"]["600"] = {
        "content": "<think>",
        "lstrip": False,
        "rstrip": True,
        "single_word": False,
        "normalized": False,
        "special": False,
    }
    return tokenizer, config, model_type


def tekken():
    tokenizer = byte_level(500, [isolated(TEKKEN)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    tokenizer.post_processor = around(tokenizer, "<s> $A")
    config = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    return tokenizer, config, "mistral"


def o200k():
    tokenizer = byte_level(450, [isolated(O200K)])
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer, {"eos_token": "<|endoftext|>", "split_special_tokens": True}, "phi3"


def cl100k():
    tokenizer = byte_level(400, [isolated(CL100K)])
    tokenizer.add_special_tokens(["<|endoftext|>"])
    eos_token = {"__type": "AddedToken", "content": "<|endoftext|>", "lstrip": False}
    return tokenizer, {"eos_token": eos_token}, "llama"


def splits():
    """The other behaviors of Split, and Digits."""
    tokenizer = byte_level(300, [])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split("-", "removed"),
            pre_tokenizers.Split(Regex(r"[,;]"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"[(\[]"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"[=+*/]"), "contiguous"),
            pre_tokenizers.Split(Regex(r"\w+|\h+"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer, {"eos_token": "</s>"}, "llama"


def deepseek():
    split = [
        isolated(r"\p{N}{1,3}"),
        isolated(r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        isolated(DEEPSEEK),
    ]
    tokenizer = byte_level(450, split)
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.add_special_tokens(["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "</s>"])
    tokenizer.post_processor = around(tokenizer, "<\uff5cbegin\u2581of\u2581sentence\uff5c> $A")
    config = {"tokenizer_class": "LlamaTokenizerFast", "eos_token": "</s>"}
    return tokenizer, config, "llama"


def roberta_like():
    tokenizer = byte_level(400, [])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    tokenizer.add_tokens([AddedToken("Caf\u00e9", normalized=True)])
    s, e = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", e), ("<s>", s))
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}, "llama"


def llama2(legacy=False):
    tokenizer = metaspace_bpe(700, ["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = around(tokenizer, "<s> $A")
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "legacy": legacy,
        "add_bos_token": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    return tokenizer, config, "llama"


def llama2_legacy():
    return llama2(legacy=True)


def mistral():
    tokenizer, config, _ = llama2()
    return tokenizer, config, "mistral"


def across_words():
    """Merges that cross spaces, and characters that are neither tokens nor bytes."""
    tokenizer = metaspace_bpe(600, ["<unk>", "<s>", "</s>"], spans_words=True)
    data = json.loads(tokenizer.to_str())
    for byte in ("<0xE2>", "<0xF0>"):
        data["model"]["vocab"][byte + "x"] = data["model"]["vocab"].pop(byte)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}, "llama"


def gemma():
    tokenizer = metaspace_bpe(700, ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = around(tokenizer, "<bos> $A")
    config = {
        "tokenizer_class": "GemmaTokenizer",
        "added_tokens_decoder": added_tokens_decoder(tokenizer),
    }
    return tokenizer, config, "gemma3_text"


def gemma_plain():
    tokenizer, _, _ = gemma()
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"}, "llama"


def unigram(special, unk_id, byte_fallback=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    data = json.loads(tokenizer.to_str())
    data["model"]["unk_id"] = unk_id
    if byte_fallback:
        data["model"]["byte_fallback"] = True
        data["model"]["vocab"] += [[byte, 0.0] for byte in BYTES]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def t5():
    tokenizer = unigram(["<pad>", "</s>", "<unk>", "<extra_id_0>"], 2)
    tokenizer.normalizer = normalizers.Precompiled(charsmap())
    tokenizer.post_processor = around(tokenizer, "$A </s>")
    return tokenizer, {"tokenizer_class": "T5Tokenizer", "extra_ids": 3}, "t5"


def xlm_roberta():
    tokenizer = unigram(["<s>", "<pad>", "</s>", "<unk>"], 3)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), "\u2581")]
    )
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer, {"tokenizer_class": "XLMRobertaTokenizer"}, "xlm-roberta"


def unigram_plain():
    tokenizer = unigram(["<unk>", "</s>"], 0, byte_fallback=True)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.Precompiled(charsmap()),
            normalizers.Strip(left=True, right=True),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_tokens([AddedToken("rank", normalized=True), AddedToken("<sep>", rstrip=True)])
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}, "llama"


def bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, {"tokenizer_class": "BertTokenizer", "do_lower_case": True}, "bert"


def bert_cased():
    tokenizer, _, _ = bert()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFKC()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Whitespace(),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Punctuation("merged_with_previous"),
        ]
    )
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    return tokenizer, config, "llama"


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.CharDelimiterSplit("_"),
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.FixedLength(6),
        ]
    )
    trainer = trainers.WordLevelTrainer(
        vocab_size=300, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"}, "llama"


def end_of_word():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        limit_alphabet=80,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"}, "llama"


def continuing_prefix():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Split(Regex(r"[,.;]"), "removed"),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>"],
        continuing_subword_prefix="##",
        limit_alphabet=60,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"}, "llama"


def added_tokens_decoder(tokenizer):
    keys = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    tokens = sorted(tokenizer.get_added_tokens_decoder().items())
    return {str(i): {key: getattr(token, key) for key in keys} for i, token in tokens}


def write(path, value):
    path.write_text(json.dumps(value, separators=(",", ":"), ensure_ascii=True) + "\n")


def expected(tokenizer, text):
    encoding = tokenizer(text, return_offsets_mapping=True)
    row = {
        "text": text,
        "ids": encoding["input_ids"],
        "offsets": [at for offset in encoding["offset_mapping"] for at in offset],
        "decoded": tokenizer.decode(encoding["input_ids"]),
        "decoded_skip_special": tokenizer.decode(encoding["input_ids"], skip_special_tokens=True),
    }
    return {key: value for key, value in row.items() if "decoded" not in key or value != text}


def make(family):
    source, config, model_type = family()
    folder = FIXTURES / family.__name__
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if isinstance(source, bytes):
        (folder / "tokenizer.model").write_bytes(source)
    else:
        write(folder / "tokenizer.json", json.loads(source.to_str()))
    write(folder / "tokenizer_config.json", config)
    write(folder / "config.json", {"model_type": model_type})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    auto = json.loads(backend.to_str())
    if isinstance(source, bytes) or auto != json.loads(source.to_str()):
        write(folder / "auto.json", auto)
    rng = random.Random(5)
    texts = (
        EDGES
        + [random_text(rng, words_of(backend), MOST_PARTS) for _ in range(NUM_STRINGS)]
        + CORPUS
    )
    with (folder / "expected.jsonl").open("w") as file:
        for text in texts:
            file.write(json.dumps(expected(tokenizer, text), separators=(",", ":")) + "\n")
    print(f"{family.__name__:20} {type(tokenizer).__name__:20} {len(tokenizer)} ids")


BUILDERS = [
    gpt2,
    llama3,
    qwen,
    qwen_added,
    tekken,
    o200k,
    cl100k,
    deepseek,
    splits,
    roberta_like,
    llama2,
    llama2_legacy,
    mistral,
    across_words,
    gemma,
    gemma_plain,
    t5,
    xlm_roberta,
    unigram_plain,
    bert,
    bert_cased,
    word_level,
    end_of_word,
    continuing_prefix,
    *SENTENCEPIECE_BUILDERS,
]


def main():
    for family in BUILDERS:
        if not sys.argv[1:] or family.__name__ in sys.argv[1:]:
            make(family)


if __name__ == "__main__":
    main()
