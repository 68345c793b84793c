// Dropout whose masks can be drawn again: by recompute, in a rerun, after a resume.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace tessera {

// Names the draws of one thing among all (a step, a microbatch, a rank, a layer ...): different
// parts, different draws, and the same everywhere and always for the same parts.
uint64_t make_draw(std::initializer_list<uint64_t> parts);
// The same of a name.
uint64_t make_draw(std::string_view name);

// 1 / (1 - share) with probability 1 - share, else 0. The same for the same arguments on one kind
// of device.
at::Tensor draw_mask(at::IntArrayRef sizes, double share, uint64_t draw,
                     const at::TensorOptions& options);

// Which of the tokens that something is drawn for a tensor's rows are: so many tokens in all, of
// these first one stretch of rows, then the next. What lies behind the last token is padding.
// Empty: the rows are all the tokens.
struct DrawnTokens {
  struct Stretch {
    int64_t begin, count;
  };
  int64_t num_tokens = 0;
  std::vector<Stretch> stretches;

  bool are_all() const { return stretches.empty(); }
  // As numbers, to be kept for backward.
  std::vector<int64_t> flat() const;
  static DrawnTokens from_flat(const std::vector<int64_t>& numbers);
};

// The rows of `tokens` in `all`, which has a row for each token; zeros where they are padding.
at::Tensor drawn_rows(const at::Tensor& all, const DrawnTokens& tokens);
// draw_mask of all tokens, at the rows of `tokens`.
at::Tensor draw_mask(at::IntArrayRef sizes, double share, uint64_t draw,
                     const at::TensorOptions& options, const DrawnTokens& tokens);

// x times draw_mask. Keeps no mask for backward, but draws it again. x itself where share is 0.
at::Tensor seeded_dropout(const at::Tensor& x, double share, uint64_t draw,
                          const DrawnTokens& tokens = {});

}  // namespace tessera
