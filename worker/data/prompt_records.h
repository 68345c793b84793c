// The records that prompts stand in, as JSON: what judges of completions are told of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/dataset.h"

namespace tessera {

// In memory. Immutable and thread safe.
class PromptRecords {
 public:
  // Reads all of the sources' records, one source after the other. Throws UserError: not readable,
  // malformed.
  explicit PromptRecords(const DatasetOptions& options);

  int64_t size() const { return std::ssize(ends_); }
  // A JSON object, of the record of that number.
  std::string_view of(int64_t record) const {
    const size_t begin = record == 0 ? 0 : ends_[record - 1];
    return std::string_view(text_).substr(begin, ends_[record] - begin);
  }

 private:
  std::string text_;
  std::vector<size_t> ends_;
};

}  // namespace tessera
