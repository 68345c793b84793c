"""Models of SentencePiece for make_tokenizers.py, trained on its text."""

import io
import tempfile

import sentencepiece
from make_corpus import CORPUS
from sentencepiece import sentencepiece_model_pb2

# A map of characters in SentencePiece's format of rules: small, with all that real ones have.
RULES = {
    "\uff21": "A",
    "\uff41": "a",
    "\ufb01": "fi",
    "\u00bd": "1/2",
    "\u2460": "1",
    "\u3000": " ",
    "\u00a0": " ",
    "\t": " ",
    "\n": " ",
    "\u200b": "",
    "\ufeff": "",
    "\x01": "",
    "e\u0301": "\u00e9",
    "A\u030a": "\u00c5",
    "\u212b": "\u00c5",
    "\u1100\u1161": "\uac00",
    "\U0001f130": "A",
    "\u2126": "\u03a9",
    "\uff76\uff9e": "\u30ac",
    "\u337f": "\u682a\u5f0f\u4f1a\u793e",
}


def spm(kind, vocab_size, rules=None, **options):
    model = io.BytesIO()
    lines = [line for text in CORPUS * 4 for line in text.splitlines()]
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        for source, target in (rules or {}).items():
            table.write(f"{code_points(source)}\t{code_points(target)}\n")
        table.flush()
        rule = {"rule_name": "identity"} if rules is None else {"rule_tsv": table.name}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            minloglevel=2,
            **{f"normalization_{key}": value for key, value in rule.items()},
            **options,
        )
    proto = spm_proto(model.getvalue())
    proto.trainer_spec.ClearField("input")
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    return proto.SerializeToString()


def code_points(text):
    return " ".join(f"{ord(character):X}" for character in text)


def spm_proto(model):
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    return proto


def spm_llama():
    model = spm(
        "bpe",
        600,
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
        character_coverage=0.98,
    )
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True}
    return model, config, "llama"


def spm_gemma():
    model = spm(
        "bpe",
        600,
        byte_fallback=True,
        remove_extra_whitespaces=False,
        character_coverage=0.98,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        control_symbols="<mask>,<start_of_turn>",
        user_defined_symbols="<user>,\n\n",
    )
    return model, {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}, "gemma"


def spm_mistral():
    model = spm(
        "bpe",
        500,
        RULES,
        byte_fallback=True,
        remove_extra_whitespaces=False,
        character_coverage=0.98,
        user_defined_symbols="[INST]",
    )
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    return model, config, "mistral"


def spm_unigram():
    model = spm("unigram", 300, RULES, character_coverage=0.98, control_symbols="<|x|>")
    return model, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}, "mistral"


def spm_t5():
    model = spm("unigram", 300, RULES, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return model, {"tokenizer_class": "T5Tokenizer", "extra_ids": 4}, "t5"


def spm_xlm_roberta():
    return spm("unigram", 300, RULES), {"tokenizer_class": "XLMRobertaTokenizer"}, "xlm-roberta"


def charsmap():
    return spm_proto(spm("unigram", 300, RULES)).normalizer_spec.precompiled_charsmap


SENTENCEPIECE_BUILDERS = [spm_llama, spm_gemma, spm_mistral, spm_unigram, spm_t5, spm_xlm_roberta]
