#include "worker/data/tokenizer_class.h"

#include <algorithm>

#include "worker/data/mapped_file.h"
#include "worker/errors.h"

namespace tessera {
namespace {

std::string json_of(bool value) { return value ? "true" : "false"; }

// A text of one of the special tokens, as JSON.
std::string json_text(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json.push_back('\\');
    if (static_cast<uint8_t>(c) >= 0x20) json.push_back(c);
  }
  return json + "\"";
}

constexpr const char* kMetaspaceBytesDecoder =
    R"({"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},)"
    R"({"type":"Fuse"})";

std::string llama(const TokenizerConfig& config) {
  const bool prefix = config.add_prefix_space.value_or(true);
  const std::string scheme = !prefix ? "never" : config.legacy ? "always" : "first";
  return R"({"normalizer":null,"model":{"type":"BPE","fuse_unk":true,"byte_fallback":true},)"
         R"("pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":")" +
         scheme + R"(","split":false},"decoder":{"type":"Sequence","decoders":[)" +
         kMetaspaceBytesDecoder +
         (prefix ? R"(,{"type":"Strip","content":" ","start":1,"stop":0})" : "") + "]}}";
}

std::string gemma(const TokenizerConfig& config) {
  return R"({"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},)"
         R"("model":{"type":"BPE","fuse_unk":true,"byte_fallback":true,"unk_token":)" +
         json_text(config.content_of("unk_token")) +
         R"(},"pre_tokenizer":{"type":"Split","pattern":{"String":" "},)"
         R"("behavior":"MergedWithPrevious","invert":false},)"
         R"("decoder":{"type":"Sequence","decoders":[)" +
         kMetaspaceBytesDecoder + "]}}";
}

// Byte-level BPE, the text cut by a pattern first; `pattern` is JSON.
std::string byte_level(const TokenizerConfig& config, std::string_view pattern) {
  return R"({"normalizer":{"type":"NFC"},"model":{"type":"BPE"},"decoder":{"type":"ByteLevel"},)"
         R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
         R"({"Regex":")" +
         std::string(pattern) + R"("},"behavior":"Isolated","invert":false},{"type":"ByteLevel",)" +
         R"("add_prefix_space":)" + json_of(config.add_prefix_space.value_or(false)) +
         R"(,"use_regex":false}]}})";
}

std::string qwen2(const TokenizerConfig& config) {
  return byte_level(config, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|)"
                            R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)");
}

std::string qwen3_5(const TokenizerConfig& config) {
  return byte_level(config,
                    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|)"
                    R"( ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)");
}

// GPT-2's own pattern; `before` are pre-tokenizers that come first.
std::string gpt2_like(const TokenizerConfig& config, std::string_view normalizer,
                      std::string_view before) {
  return R"({"normalizer":)" + std::string(normalizer) +
         R"(,"model":{"type":"BPE"},"decoder":{"type":"ByteLevel"},)"
         R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
         std::string(before) + R"({"type":"ByteLevel","add_prefix_space":)" +
         json_of(config.add_prefix_space.value_or(false)) + "}]}}";
}

std::string gpt2(const TokenizerConfig& config) { return gpt2_like(config, "null", ""); }

std::string gpt_neox(const TokenizerConfig& config) {
  return gpt2_like(config, R"({"type":"NFC"})", "");
}

std::string cohere(const TokenizerConfig& config) {
  return gpt2_like(config, R"({"type":"NFC"})", R"({"type":"Digits","individual_digits":true},)");
}

// The normalizer is the file's Precompiled, if it has one.
std::string unigram(std::string_view unk_id, std::string_view scheme) {
  return R"({"model":{"type":"Unigram","byte_fallback":false,"unk_id":)" + std::string(unk_id) +
         R"(},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},)"
         R"({"type":"Metaspace","replacement":"▁","split":true,"prepend_scheme":")" +
         std::string(scheme) +
         R"("}]},"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":")" +
         std::string(scheme) + R"("}})";
}

std::string t5(const TokenizerConfig&) { return unigram("2", "always"); }

std::string xlm_roberta(const TokenizerConfig& config) {
  return unigram("3", config.add_prefix_space.value_or(true) ? "always" : "never");
}

std::string bert(const TokenizerConfig& config) {
  const bool lowercase = config.do_lower_case.value_or(true);
  return R"({"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":)" +
         json_of(config.tokenize_chinese_chars.value_or(true)) + R"(,"strip_accents":)" +
         (config.strip_accents ? json_of(*config.strip_accents) : "null") + R"(,"lowercase":)" +
         json_of(lowercase) + R"(},"pre_tokenizer":{"type":"BertPreTokenizer"},)" +
         R"("model":{"type":"WordPiece","continuing_subword_prefix":"##",)" +
         R"("max_input_chars_per_word":100,"unk_token":)" +
         json_text(config.content_of("unk_token")) +
         R"(},"decoder":{"type":"WordPiece","prefix":"##","cleanup":true}})";
}

using Around = TokenizerClass::Around;

using Default = TokenizerClass::Default;

constexpr Default kBert[] = {{"unk_token", "[UNK]"},
                             {"sep_token", "[SEP]"},
                             {"pad_token", "[PAD]"},
                             {"cls_token", "[CLS]"},
                             {"mask_token", "[MASK]"}};
constexpr Default kCohere[] = {{"unk_token", "<UNK>"},
                               {"bos_token", "<BOS_TOKEN>"},
                               {"eos_token", "<|END_OF_TURN_TOKEN|>"},
                               {"pad_token", "<PAD>"},
                               {"cls_token", "<CLS>"},
                               {"sep_token", "<SEP>"},
                               {"mask_token", "<MASK_TOKEN>"}};
constexpr Default kGpt2[] = {
    {"unk_token", "<|endoftext|>"}, {"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}};
constexpr Default kGptNeoX[] = {{"unk_token", "<|endoftext|>"},
                                {"bos_token", "<|endoftext|>"},
                                {"eos_token", "<|endoftext|>"},
                                {"pad_token", "<|padding|>"}};
constexpr Default kGemma[] = {{"unk_token", "<unk>"},
                              {"bos_token", "<bos>"},
                              {"eos_token", "<eos>"},
                              {"pad_token", "<pad>"},
                              {"mask_token", "<mask>"}};
constexpr Default kLlama[] = {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
constexpr Default kQwen[] = {
    {"unk_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}};
constexpr Default kT5[] = {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
constexpr Default kXlmRoberta[] = {
    {"bos_token", "<s>"},   {"eos_token", "</s>"},  {"sep_token", "</s>"},   {"cls_token", "<s>"},
    {"unk_token", "<unk>"}, {"pad_token", "<pad>"}, {"mask_token", "<mask>"}};

// The class without rules of its own: tokenizer.json as it is.
constexpr std::string_view kPlain = "TokenizersBackend";

constexpr TokenizerClass kKnown[] = {
    {.name = kPlain},
    {.name = "BertTokenizer",
     .recipe = bert,
     .defaults = kBert,
     .around = Around::kNamed,
     .before = "cls_token",
     .after = "sep_token"},
    {.name = "CohereTokenizer", .recipe = cohere, .defaults = kCohere},
    {.name = "GPT2Tokenizer", .recipe = gpt2, .defaults = kGpt2},
    {.name = "GPTNeoXTokenizer",
     .recipe = gpt_neox,
     .defaults = kGptNeoX,
     .around = Around::kBosEos},
    {.name = "GemmaTokenizer", .recipe = gemma, .defaults = kGemma},
    {.name = "LlamaTokenizer", .recipe = llama, .defaults = kLlama},
    {.name = "Qwen2Tokenizer", .recipe = qwen2, .defaults = kQwen},
    {.name = "Qwen3_5Tokenizer", .recipe = qwen3_5, .defaults = kQwen},
    {.name = "T5Tokenizer",
     .recipe = t5,
     .defaults = kT5,
     .around = Around::kNamed,
     .after = "eos_token"},
    {.name = "XLMRobertaTokenizer",
     .recipe = xlm_roberta,
     .defaults = kXlmRoberta,
     .around = Around::kNamed,
     .before = "bos_token",
     .after = "eos_token"},
};

// Classes of transformers with rules of their own that are not known here. A name that it does not
// know either stands for tokenizer.json as it is.
// (Their names end in Tokenizer.)
constexpr std::string_view kForeign =
    "Albert Bart Barthez Bartpho BertGeneration BertJapanese Bertweet BigBird BioGpt "
    "Blenderbot BlenderbotSmall ByT5 CLIP CTRL Camembert Canine Clvp CodeGen CodeLlama "
    "ConvBert Cpm CpmAnt DPRContextEncoder DPRQuestionEncoder DPRReader Deberta DebertaV2 Dia "
    "DistilBert Esm Esmc FNet FSMT FastSpeech2Conformer Flaubert Funnel GPTNeoXJapanese "
    "GPTSw3 Herbert LED Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Longformer Luke M2M100 MBart "
    "MBart50 MLuke MPNet Marian MarkupLM Mgpstr MobileBert MyT5 Nllb Nougat OpenAIGPT PLBart "
    "Parakeet Pegasus Perceiver Phobert Pop2Piano ProphetNet Reformer RemBert RoCBert "
    "RoFormer Roberta SeamlessM4T Siglip Siglip2 Speech2Text SpeechT5 Splinter Tapas Tipsv2 "
    "Udop VideoPrism Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC Whisper XGLM XLM XLNet ";

// What a type of model has, where it is not the plain one.
struct Registered {
  std::string_view model_type;
  std::string_view name;
};
constexpr Registered kRegistered[] = {{"bert", "BertTokenizer"},
                                      {"cohere", "CohereTokenizer"},
                                      {"cohere2", "CohereTokenizer"},
                                      {"dbrx", "GPT2Tokenizer"},
                                      {"falcon_mamba", "GPTNeoXTokenizer"},
                                      {"gemma", "GemmaTokenizer"},
                                      {"gemma2", "GemmaTokenizer"},
                                      {"gemma3", "GemmaTokenizer"},
                                      {"gemma3_text", "GemmaTokenizer"},
                                      {"gemma3n", "GemmaTokenizer"},
                                      {"gemma3n_text", "GemmaTokenizer"},
                                      {"gpt2", "GPT2Tokenizer"},
                                      {"gpt_neo", "GPT2Tokenizer"},
                                      {"gpt_neox", "GPTNeoXTokenizer"},
                                      {"gptj", "GPT2Tokenizer"},
                                      {"mamba", "GPTNeoXTokenizer"},
                                      {"mamba2", "GPTNeoXTokenizer"},
                                      {"mpt", "GPTNeoXTokenizer"},
                                      {"mt5", "T5Tokenizer"},
                                      {"olmo", "GPTNeoXTokenizer"},
                                      {"olmoe", "GPTNeoXTokenizer"},
                                      {"opt", "GPT2Tokenizer"},
                                      {"phi", "GPT2Tokenizer"},
                                      {"qwen2", "Qwen2Tokenizer"},
                                      {"qwen2_moe", "Qwen2Tokenizer"},
                                      {"qwen3", "Qwen2Tokenizer"},
                                      {"qwen3_5", "Qwen3_5Tokenizer"},
                                      {"qwen3_5_moe", "Qwen3_5Tokenizer"},
                                      {"qwen3_5_text", "Qwen3_5Tokenizer"},
                                      {"qwen3_moe", "Qwen2Tokenizer"},
                                      {"qwen3_next", "Qwen2Tokenizer"},
                                      {"recurrent_gemma", "GemmaTokenizer"},
                                      {"rwkv", "GPTNeoXTokenizer"},
                                      {"starcoder2", "GPT2Tokenizer"},
                                      {"t5", "T5Tokenizer"},
                                      {"xlm-roberta", "XLMRobertaTokenizer"},
                                      {"flex_olmo", kPlain},
                                      {"glm", kPlain},
                                      {"glm4", kPlain},
                                      {"gpt_bigcode", kPlain},
                                      {"granite", kPlain},
                                      {"granitemoe", kPlain},
                                      {"ministral", kPlain},
                                      {"ministral3", kPlain},
                                      {"mistral", kPlain},
                                      {"mistral3", kPlain},
                                      {"mixtral", kPlain},
                                      {"olmo2", kPlain},
                                      {"olmo3", kPlain},
                                      {"persimmon", kPlain},
                                      {"phi3", kPlain},
                                      {"phimoe", kPlain},
                                      {"stablelm", kPlain}};

// Types of models whose published files name a class that is not theirs.
constexpr std::string_view kMisdeclared[] = {"arctic",   "internlm2",  "internlm3", "jamba",
                                             "minicpm3", "minimax_m2", "nemotron",  "phi3",
                                             "phimoe",   "qwen2",      "qwen3_5",   "qwen3_5_moe"};

template <typename List>
bool contains(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

bool is_foreign(std::string_view name) {
  constexpr std::string_view kSuffix = "Tokenizer";
  if (!name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  const std::string list = " " + std::string(kForeign);
  return list.find(" " + std::string(name) + " ") != std::string::npos;
}

std::string_view without_fast(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  return name;
}

std::string_view registered_for(std::string_view model_type) {
  for (const Registered& row : kRegistered) {
    if (row.model_type == model_type) return row.name;
  }
  return contains(kMisdeclared, model_type) ? kPlain : "";
}

bool is_byte_level(const std::filesystem::path& directory, const std::string& field) {
  const auto path = directory / "tokenizer.json";
  return std::filesystem::exists(path) &&
         MappedFile(path, field).contents().find("\"ByteLevel\"") != std::string_view::npos;
}

// The name of the class; one that is not known stands for the plain one.
std::string_view class_name_of(const std::filesystem::path& directory,
                               const TokenizerConfig& config, const std::string& field) {
  const std::string_view declared =
      without_fast(config.declared_class.empty() ? config.model_class : config.declared_class);
  const std::string_view registered = registered_for(config.model_type);
  const bool misdeclared = contains(kMisdeclared, config.model_type);
  // Llama 3 says LlamaTokenizer and is byte-level.
  if (declared == "LlamaTokenizer" && !misdeclared && is_byte_level(directory, field)) {
    return kPlain;
  }
  if (declared.empty()) return registered.empty() ? kPlain : registered;
  if (registered.empty() || registered == declared) return declared;
  if (registered == kPlain) return kPlain;
  return misdeclared ? registered : declared;
}

}  // namespace

const TokenizerClass& tokenizer_class_of(const std::filesystem::path& directory,
                                         const TokenizerConfig& config, const std::string& field) {
  const std::string_view name = class_name_of(directory, config, field);
  for (const TokenizerClass& known : kKnown) {
    if (known.name == name) return known;
  }
  if (is_foreign(name)) {
    throw UserError(field, (directory / "tokenizer_config.json").string() +
                               ": tokenizer_class is " + std::string(name) +
                               ", which makes its own tokenizer by rules that are not supported; "
                               "set it to PreTrainedTokenizerFast to have tokenizer.json as it is");
  }
  return kKnown[0];
}

}  // namespace tessera
