// Dropout whose masks can be drawn again: by recompute, in a rerun, after a resume.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>

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

// x times draw_mask. Keeps no mask for backward, but draws it again. x itself where share is 0.
at::Tensor seeded_dropout(const at::Tensor& x, double share, uint64_t draw);

}  // namespace tessera
