// The formats of records that TRL's trainers take: docs/data.md has them, method by method.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "worker/data/example.h"
#include "worker/data/record.h"
#include "worker/data/tokenizer.h"

namespace tessera {

// Whose formats records have.
enum class RecordKind { kSft, kDpo, kKto, kReward, kGkd, kPrompt };

struct ExampleOptions {
  RecordKind kind = RecordKind::kSft;
  std::string method = "method.sft";  // what errors call the fields below by; and whether the
  bool has_eos_field = true;          // method has an eos_token among them
  std::string text_field = "text";
  std::filesystem::path tokenizer;  // its directory, which also holds the chat templates
  std::string eos_token;            // empty: the tokenizer's own
  // SFT's. Only tokens of the completion count. Absent: so where the first record has prompt and
  // completion.
  std::optional<bool> completion_only_loss;
  bool assistant_only_loss = false;  // SFT's: only tokens that the assistant says count
  // Prompts': text gets what the tokenizer puts around a text.
  bool prompts_get_special_tokens = true;
  // A .jinja file, or a directory with a tokenizer's files. Empty: `tokenizer`.
  std::filesystem::path chat_template_path;
  // Gets lines for people, about what records are made of; from any thread.
  std::function<void(const std::string&)> note = [](auto&) {};
};

// How the records of a file become examples. The first record decides the format, and any chat
// template is parsed once. Immutable: one serves all threads.
class ExampleFormat {
 public:
  virtual ~ExampleFormat() = default;
  // One a thread. It must not outlive the format, nor the format the tokenizer.
  virtual std::unique_ptr<ExampleEncoder> make_encoder() const = 0;
  // Of every record.
  virtual int documents_per_record() const { return 1; }
  // What examples depend on besides the records, the options and the tokenizer's own files: the
  // text of the chat template, and what else is read. For the key of a cache.
  virtual const std::string& fingerprint() const = 0;
};

// Reads what the format of `first` needs; null for a tokenizer where records are tokens already.
// Throws UserError: a record of no known format, no EOS token, no chat template or one that does
// not parse, an option that does not fit the format.
std::unique_ptr<const ExampleFormat> make_example_format(const ExampleOptions& options,
                                                         const Tokenizer* tokenizer,
                                                         const Record& first);

}  // namespace tessera
