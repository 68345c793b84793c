#include "worker/kernels/paged_attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/tensor_ops.h"
#include "worker/kernels/work.h"

namespace tessera {
namespace {

// Rows of scores, one for each query and head, that a thread works on at a time.
constexpr int64_t kTileRows = 16;

// The first key that a query at `position` sees.
int64_t first_seen(int64_t position, int64_t window) {
  return window == 0 ? 0 : std::max<int64_t>(0, position + 1 - window);
}

// Queries [query, query + num_queries) of a span, for one key/value head.
struct Tile {
  const PagedSpan* span;
  int64_t kv_head, query, num_queries;

  int64_t begin_page(int64_t window) const {
    return first_seen(span->position(query), window) / kPageTokens;
  }
  int64_t end_key() const { return span->position(query + num_queries - 1) + 1; }
};

struct Problem {
  int64_t num_heads, num_kv_heads, head_dim, window;
  std::vector<Tile> tiles;
  int64_t most_keys = 0;  // of a tile, in whole pages

  Problem(const at::Tensor& q_TNH, const PageTensors& from, const std::vector<PagedSpan>& spans,
          int64_t window)
      : num_heads(q_TNH.size(1)),
        num_kv_heads(from.keys_PKHJ.size(1)),
        head_dim(q_TNH.size(2)),
        window(window) {
    const int64_t step = tile_queries();
    for (const PagedSpan& span : spans) {
      for (int64_t query = 0; query < span.num_queries; query += step) {
        const int64_t count = std::min(step, span.num_queries - query);
        for (int64_t k = 0; k < num_kv_heads; ++k) tiles.push_back({&span, k, query, count});
        const Tile& tile = tiles.back();
        const int64_t pages = at::ceil_div(tile.end_key(), kPageTokens) - tile.begin_page(window);
        most_keys = std::max(most_keys, pages * kPageTokens);
      }
    }
  }

  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t tile_queries() const { return std::max<int64_t>(1, kTileRows / group()); }
  int64_t tile_rows() const { return tile_queries() * group(); }

  // Of a thread: the scores of a tile, its queries, what they attend to, the sum of each row.
  at::Tensor make_scratch(const at::Tensor& q_TNH) const {
    const int64_t floats = tile_rows() * (most_keys + 2 * head_dim + 1);
    return at::empty({num_kernel_threads(q_TNH), floats}, q_TNH.options().dtype(at::kFloat));
  }
};

float to_float(float value) { return value; }
float to_float(Bfloat value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide;
  static_assert(sizeof wide == sizeof bits);
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

void put_float(float& to, float value) { to = value; }
// Rounds to the nearest, ties to even; a NaN stays one.
void put_float(Bfloat& to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool is_nan = std::isnan(value);
  to.bits = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40
                                         : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// [T, heads, H] by its addresses.
template <typename T>
struct Heads {
  explicit Heads(const at::Tensor& x)
      : data(static_cast<T*>(x.data_ptr())), token(x.stride(0)), head(x.stride(1)) {}
  T* at(int64_t t, int64_t n) const { return data + t * token + n * head; }

  T* data;
  int64_t token, head;  // strides
};

template <typename T>
class TileRunner {
 public:
  TileRunner(const Problem& problem, const at::Tensor& out_TNH, const at::Tensor& q_TNH,
             const PageTensors& from)
      : p_(problem),
        q_(q_TNH),
        out_(out_TNH),
        keys_(static_cast<const T*>(from.keys_PKHJ.data_ptr())),
        values_(static_cast<const T*>(from.values_PKJH.data_ptr())),
        scale_(static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)))) {}

  void run(const Tile& tile, float* scratch) const {
    const int64_t width = p_.head_dim, rows = tile.num_queries * p_.group();
    const int64_t begin = tile.begin_page(p_.window), end_key = tile.end_key();
    const int64_t end = at::ceil_div(end_key, kPageTokens);
    const int64_t num_keys = (end - begin) * kPageTokens;
    const Rows<float> queries{scratch, width};
    const Rows<float> sums{scratch + rows * width, width};
    const Rows<float> scores{scratch + 2 * rows * width, num_keys};
    float* const totals = scratch + rows * (2 * width + num_keys);
    take_queries(tile, queries);
    const CpuTypedKernels<T>& kernels = cpu_kernels().of<T>();
    for (int64_t page = begin; page < end; ++page) {
      kernels.page_scores({scores[0] + (page - begin) * kPageTokens, num_keys},
                          {queries.data, width}, keys_ + at(tile, page), rows, width);
    }
    softmax(tile, scores, begin * kPageTokens, totals);
    std::fill_n(sums.data, rows * width, 0.0f);
    for (int64_t page = begin; page < end; ++page) {
      kernels.page_values(sums, {scores[0] + (page - begin) * kPageTokens, num_keys},
                          values_ + at(tile, page),
                          std::min(kPageTokens, end_key - page * kPageTokens), rows, width);
    }
    put_sums(tile, sums, totals);
  }

 private:
  // Of a page's keys or values: both have as many numbers for a head.
  int64_t at(const Tile& tile, int64_t page) const {
    const int64_t head = tile.span->pages[page] * p_.num_kv_heads + tile.kv_head;
    return head * kPageTokens * p_.head_dim;
  }

  // The token and the head of a row.
  int64_t token(const Tile& tile, int64_t row) const {
    return tile.span->query_row + tile.query + row / p_.group();
  }
  int64_t head(const Tile& tile, int64_t row) const {
    return tile.kv_head * p_.group() + row % p_.group();
  }

  void take_queries(const Tile& tile, Rows<float> queries) const {
    for (int64_t row = 0; row < tile.num_queries * p_.group(); ++row) {
      const T* from = q_.at(token(tile, row), head(tile, row));
      for (int64_t h = 0; h < p_.head_dim; ++h) queries[row][h] = to_float(from[h]) * scale_;
    }
  }

  void softmax(const Tile& tile, Rows<float> scores, int64_t first_key, float* totals) const {
    for (int64_t row = 0; row < tile.num_queries * p_.group(); ++row) {
      const int64_t position = tile.span->position(tile.query + row / p_.group());
      totals[row] = cpu_kernels()
                        .softmax(scores[row], first_seen(position, p_.window) - first_key,
                                 position + 1 - first_key, scores.stride)
                        .sum;
    }
  }

  void put_sums(const Tile& tile, Rows<float> sums, const float* totals) const {
    for (int64_t row = 0; row < tile.num_queries * p_.group(); ++row) {
      T* to = out_.at(token(tile, row), head(tile, row));
      const float inverse = 1 / totals[row];
      for (int64_t h = 0; h < p_.head_dim; ++h) put_float(to[h], sums[row][h] * inverse);
    }
  }

  const Problem& p_;
  Heads<const T> q_;
  Heads<T> out_;
  const T *keys_, *values_;
  float scale_;
};

template <typename T>
void run_tiles(const Problem& problem, const at::Tensor& scratch, const at::Tensor& out_TNH,
               const at::Tensor& q_TNH, const PageTensors& from) {
  const TileRunner<T> runner(problem, out_TNH, q_TNH, from);
  auto* floats = scratch.data_ptr<float>();
  at::parallel_for(0, std::ssize(problem.tiles), 1, [&](int64_t begin, int64_t end) {
    float* mine = floats + at::get_thread_num() * scratch.size(1);
    for (int64_t i = begin; i < end; ++i) runner.run(problem.tiles[i], mine);
  });
}

template <typename T>
void store_tokens(const PageTensors& to, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                  const std::vector<PagedSpan>& spans) {
  const int64_t heads = k_TKH.size(1), width = k_TKH.size(2);
  const Heads<const T> k(k_TKH), v(v_TKH);
  auto* keys = static_cast<T*>(to.keys_PKHJ.data_ptr());
  auto* values = static_cast<T*>(to.values_PKJH.data_ptr());
  for (const PagedSpan& span : spans) {
    for (int64_t i = 0; i < span.num_queries; ++i) {
      const int64_t position = span.position(i), slot = position % kPageTokens;
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t at =
            (span.pages[position / kPageTokens] * heads + head) * kPageTokens * width;
        const T* key = k.at(span.query_row + i, head);
        for (int64_t h = 0; h < width; ++h) keys[at + h * kPageTokens + slot] = key[h];
        std::copy_n(v.at(span.query_row + i, head), width, values + at + slot * width);
      }
    }
  }
}

// int64 on the pages' device.
at::Tensor page_index(const PagedSpan& span, int64_t begin, int64_t end, const at::Tensor& like) {
  const std::vector<int64_t> pages(span.pages.begin() + begin, span.pages.begin() + end);
  return at::tensor(pages, at::TensorOptions(at::kLong)).to(like.device());
}

void store_by_aten(const PageTensors& to, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                   const std::vector<PagedSpan>& spans) {
  for (const PagedSpan& span : spans) {
    for (int64_t i = 0; i < span.num_queries;) {
      const int64_t position = span.position(i), slot = position % kPageTokens;
      const int64_t count = std::min(kPageTokens - slot, span.num_queries - i);
      const int64_t page = span.pages[position / kPageTokens], row = span.query_row + i;
      to.keys_PKHJ.select(0, page)
          .narrow(2, slot, count)
          .copy_(k_TKH.narrow(0, row, count).permute({1, 2, 0}));
      to.values_PKJH.select(0, page)
          .narrow(1, slot, count)
          .copy_(v_TKH.narrow(0, row, count).transpose(0, 1));
      i += count;
    }
  }
}

// One span: its pages side by side, and the whole of its scores.
void attend_by_aten(const at::Tensor& out_TNH, const at::Tensor& q_TNH, const PageTensors& from,
                    const PagedSpan& span, int64_t window) {
  const int64_t heads = q_TNH.size(1), width = q_TNH.size(2), kv_heads = from.keys_PKHJ.size(1);
  const int64_t queries = span.num_queries, end = at::ceil_div(span.num_keys, kPageTokens);
  const int64_t begin = first_seen(span.position(0), window) / kPageTokens;
  const int64_t num_keys = (end - begin) * kPageTokens, first_key = begin * kPageTokens;
  const at::Tensor index = page_index(span, begin, end, from.keys_PKHJ);
  const at::Tensor k_KHU = from.keys_PKHJ.index_select(0, index)
                               .permute({1, 2, 0, 3})
                               .reshape({kv_heads, width, num_keys});
  at::Tensor v_KUH =
      from.values_PKJH.index_select(0, index).transpose(0, 1).reshape({kv_heads, num_keys, width});
  // What a page's end holds, where no token is yet, may be no number.
  const int64_t empty = end * kPageTokens - span.num_keys;
  v_KUH.narrow(1, num_keys - empty, empty).zero_();
  // [K, G * Q, H]: the heads of a group over the same keys.
  const at::Tensor q = q_TNH.narrow(0, span.query_row, queries)
                           .reshape({queries, kv_heads, heads / kv_heads, width})
                           .permute({1, 2, 0, 3})
                           .reshape({kv_heads, heads / kv_heads * queries, width});
  const at::Tensor position_Q1 =
      at::arange(span.position(0), span.num_keys, q.options().dtype(at::kLong)).unsqueeze(1);
  const at::Tensor key_1U =
      at::arange(first_key, first_key + num_keys, position_Q1.options()).unsqueeze(0);
  at::Tensor hidden_QU = key_1U > position_Q1;
  if (window > 0) hidden_QU = hidden_QU.logical_or(key_1U <= position_Q1 - window);
  at::Tensor scores = at::bmm(q, k_KHU).mul_(1 / std::sqrt(static_cast<double>(width)));
  scores.view({kv_heads, heads / kv_heads, queries, num_keys})
      .masked_fill_(hidden_QU, -std::numeric_limits<double>::infinity());
  const at::Tensor out = at::bmm(scores.softmax(-1), v_KUH);
  out_TNH.narrow(0, span.query_row, queries)
      .view({queries, kv_heads, heads / kv_heads, width})
      .copy_(out.view({kv_heads, heads / kv_heads, queries, width}).permute({2, 0, 1, 3}));
}

}  // namespace

void store_in_pages(const PageTensors& to, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                    const std::vector<PagedSpan>& spans) {
  if (!has_cpu_kernels(k_TKH)) return store_by_aten(to, k_TKH, v_TKH, spans);
  if (k_TKH.is_meta()) return count_kernel(0, {k_TKH, k_TKH, v_TKH, v_TKH});
  TORCH_CHECK(k_TKH.stride(2) == 1 && v_TKH.stride(2) == 1, "heads are contiguous");
  if (k_TKH.scalar_type() == at::kFloat) {
    store_tokens<float>(to, k_TKH, v_TKH, spans);
  } else {
    store_tokens<Bfloat>(to, k_TKH, v_TKH, spans);
  }
}

void paged_attention_out(const at::Tensor& out_TNH, const at::Tensor& q_TNH,
                         const PageTensors& from, const std::vector<PagedSpan>& spans,
                         int64_t window) {
  if (spans.empty()) return;
  if (!has_cpu_kernels(q_TNH)) {
    for (const PagedSpan& span : spans) attend_by_aten(out_TNH, q_TNH, from, span, window);
    return;
  }
  const Problem problem(q_TNH, from, spans, window);
  const at::Tensor scratch = problem.make_scratch(q_TNH);
  if (q_TNH.is_meta()) {
    const double flops = paged_attention_flops(q_TNH, spans, window);
    // Each key and value is read by a product of two operations.
    const auto bytes = static_cast<int64_t>(flops / 2) / problem.group() * q_TNH.element_size();
    return count_kernel(flops, bytes);
  }
  TORCH_CHECK(q_TNH.stride(2) == 1 && out_TNH.is_contiguous(), "heads are contiguous");
  if (q_TNH.scalar_type() == at::kFloat) {
    run_tiles<float>(problem, scratch, out_TNH, q_TNH, from);
  } else {
    run_tiles<Bfloat>(problem, scratch, out_TNH, q_TNH, from);
  }
}

double paged_attention_flops(const at::Tensor& q_TNH, const std::vector<PagedSpan>& spans,
                             int64_t window) {
  double pairs = 0;
  for (const PagedSpan& span : spans) {
    for (int64_t i = 0; i < span.num_queries; ++i) {
      const int64_t position = span.position(i);
      pairs += static_cast<double>(position + 1 - first_seen(position, window));
    }
  }
  return 4.0 * pairs * static_cast<double>(q_TNH.size(1) * q_TNH.size(2));
}

}  // namespace tessera
