// What the files beside a tokenizer say: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json and config.json, put together as transformers does.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/added_tokens.h"
#include "worker/data/json.h"

namespace tessera {

struct TokenizerConfig {
  std::string declared_class;  // tokenizer_class of tokenizer_config.json; empty: it names none
  std::string model_class;     // tokenizer_class of config.json
  std::string model_type;      // of config.json
  std::optional<int64_t> model_eos_id;  // eos_token_id of config.json, or the first of several

  // bos_token and its like, in the order transformers keeps them.
  struct Named {
    std::string name;
    AddedToken token;    // no content: there is none
    bool given = false;  // by a file, perhaps as null: no default of the class takes its place
  };
  std::vector<Named> named;
  std::vector<AddedToken> extra;
  bool has_extra = false;               // extra_special_tokens was given
  std::map<int64_t, AddedToken> added;  // added_tokens_decoder, by id
  bool has_added = false;               // it was given

  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_prefix_space;
  std::optional<bool> do_lower_case;
  std::optional<bool> tokenize_chinese_chars;
  std::optional<bool> strip_accents;
  bool legacy = false;
  bool clean_up_tokenization_spaces = false;
  bool split_special_tokens = false;
  int64_t extra_ids = 100;

  // The content of a named token; empty: there is none.
  std::string content_of(std::string_view name) const;
  // Tokens of that content in `added` take the place of the named ones.
  void link_named();
  // Gives a named token where none is set.
  void set_default(std::string_view name, std::string_view content);
};

// A file that is not there says nothing. Throws UserError(field).
TokenizerConfig read_tokenizer_config(const std::filesystem::path& directory,
                                      const std::string& field);

// {"content": "</s>", "lstrip": false, ...}, or "</s>", which is special. `special`: where the
// former does not say.
AddedToken added_token_of(const JsonNode& node, bool special);

}  // namespace tessera
