// The post-processors of tokenizer.json: tokens around a text, and offsets trimmed of white space.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/data/json.h"

namespace tessera {

// All that a file's post-processors come to, for one text (pairs of texts are not a thing of ours).
struct PostProcessor {
  std::vector<int32_t> prefix;  // put before the tokens of a text
  std::vector<int32_t> suffix;  // and after

  // How offsets are trimmed; none where they are not.
  struct Trim {
    bool add_prefix_space = false;  // a single leading space of the first token is not the text's
    bool after_prefix = false;      // that first token is of the prefix, where there is one
  };
  std::optional<Trim> trim;
};

// Throws UserError for a kind that is not known.
PostProcessor make_post_processor(const JsonNode& node);

}  // namespace tessera
