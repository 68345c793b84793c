// The tokenizer classes of transformers: some make parts of a tokenizer themselves, whatever
// tokenizer.json says.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "worker/data/tokenizer_config.h"

namespace tessera {

struct TokenizerClass {
  enum class Around {
    kFile,    // what stands around a text is what the files say
    kBosEos,  // as add_bos_token and add_eos_token have it
    kNamed,   // `before` and `after`
  };
  struct Default {
    std::string_view name;
    std::string_view content;
  };

  std::string_view name;
  // The parts of tokenizer.json that the class makes, as such a file. Null: none.
  std::string (*recipe)(const TokenizerConfig& config) = nullptr;
  std::span<const Default> defaults;  // special tokens it has where no file names another
  Around around = Around::kFile;
  std::string_view before = {};  // names of special tokens
  std::string_view after = {};
};

// The class that AutoTokenizer takes for the directory. Throws UserError(field) for one whose rules
// are not known here.
const TokenizerClass& tokenizer_class_of(const std::filesystem::path& directory,
                                         const TokenizerConfig& config, const std::string& field);

}  // namespace tessera
