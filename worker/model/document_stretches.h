// Where documents lie among the tokens of this rank.
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/batch.h"

namespace tessera {

// Calls visit(s, begin, count) for each stretch of tokens of a document s, in order: whole
// documents, or where this rank has a part of the stream what of them lies in its two chunks.
template <typename Visit>
void each_stretch(const Documents& documents, const Visit& visit) {
  const auto in_range = [&](int64_t from, int64_t to, int64_t shift) {
    for (int64_t s = 0; s < documents.num_documents(); ++s) {
      const int64_t begin = std::max(documents.cu_seqlens[s], from);
      const int64_t end = std::min(documents.cu_seqlens[s + 1], to);
      if (begin < end) visit(s, begin + shift, end - begin);
    }
  };
  if (!documents.part) return in_range(0, documents.cu_seqlens.back(), /*shift=*/0);
  for (const int which : {0, 1}) {
    const int64_t begin = documents.part->begin(which), size = documents.part->chunk_tokens;
    in_range(begin, begin + size, which * size - begin);
  }
}

}  // namespace tessera
