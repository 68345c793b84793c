#include "worker/kernels/causal_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/trace_scope.h"
#include "worker/kernels/work.h"

// From the BLAS that LibTorch carries.
extern "C" void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta, float* c, const int* ldc);

namespace tessera {
namespace {

// Queries of a block: as many as its scores have room for, within limits that keep products quick.
constexpr int64_t kMinBlockQueries = 16, kMaxBlockQueries = 128;
constexpr int64_t kBlockScores = 1 << 19;

// [T, heads, H] by its addresses.
struct Heads {
  explicit Heads(const at::Tensor& x)
      : data(x.data_ptr<float>()), token(x.stride(0)), head(x.stride(1)) {
    TORCH_CHECK(x.is_cpu() && x.stride(2) == 1, "attention takes contiguous heads on a CPU");
  }
  float* at(int64_t t, int64_t n) const { return data + t * token + n * head; }

  float* data;
  int64_t token, head;  // strides
};

// Row-major matrices; `stride` elements from row to row.
struct Matrix {
  float* data;
  int64_t rows, columns, stride;
};

// The transpose of a row-major matrix is column-major, which BLAS takes: all products below are
// those of the transposes.
void multiply(char first, char second, const Matrix& out, const Matrix& a, const Matrix& b,
              int64_t inner, float scale, float keep) {
  const auto narrow = [](int64_t size) { return static_cast<int>(size); };
  const int columns = narrow(out.columns), rows = narrow(out.rows), summed = narrow(inner);
  const int b_stride = narrow(b.stride), a_stride = narrow(a.stride), stride = narrow(out.stride);
  sgemm_(&first, &second, &columns, &rows, &summed, &scale, b.data, &b_stride, a.data, &a_stride,
         &keep, out.data, &stride);
}

// out = scale * a @ b.t()
void multiply_transposed(const Matrix& out, const Matrix& a, const Matrix& b, float scale) {
  multiply('T', 'N', out, a, b, a.columns, scale, 0.0f);
}

// out = scale * a @ b
void multiply(const Matrix& out, const Matrix& a, const Matrix& b, float scale) {
  multiply('N', 'N', out, a, b, a.columns, scale, 0.0f);
}

// out += scale * a.t() @ b
void add_transposed_product(const Matrix& out, const Matrix& a, const Matrix& b, float scale) {
  multiply('N', 'T', out, a, b, a.rows, scale, 1.0f);
}

// A span for one key/value head and the query heads that read it.
struct Task {
  AttentionSpan span;
  int64_t kv_head;
  int64_t lse_begin, lse_head;  // of its first query in head 0, and from head to head
};

// Queries [query, query + rows) of a span, and the keys [key, key + columns) that they see.
struct Block {
  const AttentionSpan& span;
  int64_t query, rows, key, columns, window;

  // The columns that row r sees.
  int64_t first(int64_t r) const {
    return std::max<int64_t>(0, span.first_seen(query + r, window) - key);
  }
  int64_t last(int64_t r) const { return span.last_seen(query + r) - key; }
};

// How the log-sum-exp of a span's queries lie: by span a contiguous [N, num_queries], or all of
// them as [N, T].
enum class LseLayout { kBySpan, kByHead };

struct Problem {
  int64_t num_heads, num_kv_heads, head_dim, window;
  float scale;
  std::vector<Task> tasks;
  int64_t block_queries, block_scores;  // at most

  Problem(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const std::vector<AttentionSpan>& spans,
          int64_t window, LseLayout lse_layout)
      : num_heads(q_TNH.size(1)),
        num_kv_heads(k_TKH.size(1)),
        head_dim(q_TNH.size(2)),
        window(window),
        scale(static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))) {
    int64_t longest = 0;
    for (const AttentionSpan& span : spans) {
      longest = std::max(longest, span.num_keys);
      const bool by_span = lse_layout == LseLayout::kBySpan;
      for (int64_t k = 0; k < num_kv_heads; ++k) {
        tasks.push_back({span, k, span.query_row * (by_span ? num_heads : 1),
                         by_span ? span.num_queries : q_TNH.size(0)});
      }
    }
    const auto columns = [&](int64_t rows) {
      return window == 0 ? longest : std::min(longest, window + rows);
    };
    const int64_t wanted = kBlockScores / std::max<int64_t>(1, columns(kMaxBlockQueries));
    block_queries = std::clamp(wanted, kMinBlockQueries, kMaxBlockQueries);
    block_scores = block_queries * columns(block_queries);
  }

  int64_t group() const { return num_heads / num_kv_heads; }

  // `floats` a thread.
  at::Tensor make_scratch(int64_t floats, const at::Tensor& q_TNH) const {
    return at::empty({num_kernel_threads(q_TNH), floats}, q_TNH.options());
  }

  // body(task, query head, block, row of scratch) for the blocks of queries of all tasks;
  // begin(task) before those of a task.
  template <typename Begin, typename Body>
  void run(const at::Tensor& scratch, const Begin& begin_task, const Body& body) const {
    auto* all = scratch.data_ptr<float>();
    at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
      float* mine = all + at::get_thread_num() * scratch.size(1);
      for (int64_t i = begin; i < end; ++i) {
        begin_task(tasks[i]);
        for (int64_t n = 0; n < group(); ++n)
          run_head(tasks[i], tasks[i].kv_head * group() + n, mine, body);
      }
    });
  }

 private:
  template <typename Body>
  void run_head(const Task& task, int64_t n, float* scratch, const Body& body) const {
    const AttentionSpan& span = task.span;
    for (int64_t query = 0; query < span.num_queries; query += block_queries) {
      const int64_t rows = std::min(block_queries, span.num_queries - query);
      const int64_t key = span.first_seen(query, window);
      body(task, n, Block{span, query, rows, key, span.last_seen(query + rows - 1) - key, window},
           scratch);
    }
  }
};

// Where a block's matrices are.
struct BlockOf {
  const Task& task;
  const Block& block;
  int64_t head, width;

  Matrix queries(const Heads& x) const {
    return {x.at(task.span.query_row + block.query, head), block.rows, width, x.token};
  }
  Matrix keys(const Heads& x) const {
    return {x.at(task.span.key_row + block.key, task.kv_head), block.columns, width, x.token};
  }
  int64_t lse() const { return task.lse_begin + head * task.lse_head + block.query; }
};

// Rows of scores become exponentials. Of each row, the log-sum-exp and 1 / their sum.
void softmax_rows(const Matrix& scores, const Block& b, float* lse, float* inverse) {
  const CpuKernels& kernels = cpu_kernels();
  for (int64_t r = 0; r < b.rows; ++r) {
    const SoftmaxSums sums =
        kernels.softmax(scores.data + r * b.columns, b.first(r), b.last(r), b.columns);
    lse[r] = sums.largest + std::log(sums.sum);
    inverse[r] = 1 / sums.sum;
  }
}

// A row of what was attended to so far, and of what is attended to besides: `more` is times
// `inverse`, its log-sum-exp is more_lse.
void merge_row(float* out, float& lse, const float* more, float more_lse, float inverse,
               int64_t width) {
  if (lse == -std::numeric_limits<float>::infinity()) {
    lse = more_lse;
    for (int64_t h = 0; h < width; ++h) out[h] = more[h] * inverse;
    return;
  }
  const float largest = std::max(lse, more_lse);
  const float both = largest + std::log1p(std::exp(std::min(lse, more_lse) - largest));
  const float keep = std::exp(lse - both), add = std::exp(more_lse - both) * inverse;
  lse = both;
  for (int64_t h = 0; h < width; ++h) out[h] = keep * out[h] + add * more[h];
}

struct ForwardTensors {
  const at::Tensor &out_TNH, &lse, &q_TNH, &k_TKH, &v_TKH;
};

// `adds`: merges into out and lse, else writes them.
void run_forward(const ForwardTensors& x, const Problem& problem,
                 const std::vector<AttentionSpan>& spans, bool adds) {
  const TraceScope trace("attention", {x.q_TNH});
  const int64_t width = problem.head_dim;
  const at::Tensor scratch = problem.make_scratch(
      problem.block_scores + (adds ? problem.block_queries * width : 0), x.q_TNH);
  if (x.q_TNH.is_meta())
    return count_kernel(attention_flops(x.q_TNH, spans, problem.window, 2),
                        {x.q_TNH, x.k_TKH, x.v_TKH, x.out_TNH, x.lse});
  const Heads q(x.q_TNH), k(x.k_TKH), v(x.v_TKH), out(x.out_TNH);
  auto* all_lse = x.lse.data_ptr<float>();
  const auto attend_block = [&](const Task& task, int64_t n, const Block& b, float* floats) {
    const BlockOf of{task, b, n, width};
    const Matrix scores{floats, b.rows, b.columns, b.columns};
    const Matrix out_block = of.queries(out);
    const Matrix product =
        adds ? Matrix{floats + problem.block_scores, b.rows, width, width} : out_block;
    float* lse = all_lse + of.lse();
    float own_lse[kMaxBlockQueries], inverse[kMaxBlockQueries];
    multiply_transposed(scores, of.queries(q), of.keys(k), problem.scale);
    softmax_rows(scores, b, adds ? own_lse : lse, inverse);
    multiply(product, scores, of.keys(v), 1.0f);
    for (int64_t r = 0; r < b.rows; ++r) {
      float* row = out_block.data + r * out_block.stride;
      if (adds) {
        merge_row(row, lse[r], product.data + r * width, own_lse[r], inverse[r], width);
      } else {
        for (int64_t h = 0; h < width; ++h) row[h] *= inverse[r];
      }
    }
  };
  problem.run(scratch, [](const Task&) {}, attend_block);
}

struct BackwardTensors {
  const AttentionGradients& grads;
  const at::Tensor &grad_out_TNH, &q_TNH, &k_TKH, &v_TKH, &out_TNH, &lse;
};

// `adds`: to the gradients, else writes them.
void run_backward(const BackwardTensors& x, const Problem& problem,
                  const std::vector<AttentionSpan>& spans, bool adds) {
  const TraceScope trace("attention backward", {x.q_TNH});
  const at::Tensor scratch = problem.make_scratch(2 * problem.block_scores, x.q_TNH);
  if (x.q_TNH.is_meta()) {
    return count_kernel(attention_flops(x.q_TNH, spans, problem.window, 5),
                        {x.q_TNH, x.k_TKH, x.v_TKH, x.out_TNH, x.lse, x.grad_out_TNH, x.grads.q_TNH,
                         x.grads.k_TKH, x.grads.v_TKH});
  }
  const Heads q(x.q_TNH), k(x.k_TKH), v(x.v_TKH), out(x.out_TNH), grad_out(x.grad_out_TNH);
  const Heads grad_q(x.grads.q_TNH), grad_k(x.grads.k_TKH), grad_v(x.grads.v_TKH);
  const auto* all_lse = x.lse.const_data_ptr<float>();
  const int64_t width = problem.head_dim;
  const CpuKernels& kernels = cpu_kernels();
  const auto block_backward = [&](const Task& task, int64_t n, const Block& b, float* floats) {
    const BlockOf of{task, b, n, width};
    const Matrix scores{floats, b.rows, b.columns, b.columns};
    const Matrix gradient{floats + b.rows * b.columns, b.rows, b.columns, b.columns};
    const Matrix grad_out_block = of.queries(grad_out), out_block = of.queries(out);
    multiply_transposed(scores, of.queries(q), of.keys(k), problem.scale);
    const float* lse = all_lse + of.lse();
    for (int64_t r = 0; r < b.rows; ++r) {
      kernels.probabilities(scores.data + r * b.columns, lse[r], b.first(r), b.last(r), b.columns);
    }
    add_transposed_product(of.keys(grad_v), scores, grad_out_block, 1.0f);
    multiply_transposed(gradient, grad_out_block, of.keys(v), 1.0f);
    for (int64_t r = 0; r < b.rows; ++r) {
      const float mean = kernels.dot(grad_out_block.data + r * grad_out_block.stride,
                                     out_block.data + r * out_block.stride, width);
      kernels.score_gradient(gradient.data + r * b.columns, scores.data + r * b.columns, mean,
                             b.columns);
    }
    multiply('N', 'N', of.queries(grad_q), gradient, of.keys(k), b.columns, problem.scale,
             adds ? 1.0f : 0.0f);
    add_transposed_product(of.keys(grad_k), gradient, of.queries(q), problem.scale);
  };
  const auto zero_keys = [&](const Task& task) {
    const int64_t begin = task.span.key_row;
    for (int64_t t = begin; !adds && t < begin + task.span.num_keys; ++t) {
      std::fill_n(grad_k.at(t, task.kv_head), width, 0.0f);
      std::fill_n(grad_v.at(t, task.kv_head), width, 0.0f);
    }
  };
  problem.run(scratch, zero_keys, block_backward);
}

}  // namespace

double attention_flops(const at::Tensor& q_TNH, const std::vector<AttentionSpan>& spans,
                       int64_t window, int num_products) {
  return 2.0 * num_products * num_seen_pairs(spans, window) *
         static_cast<double>(q_TNH.size(1) * q_TNH.size(2));
}

void causal_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse, const at::Tensor& q_TNH,
                          const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                          const std::vector<int64_t>& cu_seqlens, int64_t window) {
  const std::vector<AttentionSpan> spans = attention_spans(cu_seqlens);
  run_forward({out_TNH, lse, q_TNH, k_TKH, v_TKH},
              Problem(q_TNH, k_TKH, spans, window, LseLayout::kBySpan), spans, /*adds=*/false);
}

void add_causal_attention_(const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                           const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                           const at::Tensor& v_TKH, const std::vector<AttentionSpan>& spans,
                           int64_t window) {
  run_forward({out_TNH, lse_NT, q_TNH, k_TKH, v_TKH},
              Problem(q_TNH, k_TKH, spans, window, LseLayout::kByHead), spans, /*adds=*/true);
}

void causal_attention_backward_out(const AttentionGradients& grads, const at::Tensor& grad_out_TNH,
                                   const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                   const at::Tensor& v_TKH, const at::Tensor& out_TNH,
                                   const at::Tensor& lse, const std::vector<int64_t>& cu_seqlens,
                                   int64_t window) {
  const std::vector<AttentionSpan> spans = attention_spans(cu_seqlens);
  run_backward({grads, grad_out_TNH, q_TNH, k_TKH, v_TKH, out_TNH, lse},
               Problem(q_TNH, k_TKH, spans, window, LseLayout::kBySpan), spans, /*adds=*/false);
}

void add_causal_attention_gradients_(const AttentionGradients& grads,
                                     const at::Tensor& grad_out_TNH, const at::Tensor& q_TNH,
                                     const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                                     const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                                     const std::vector<AttentionSpan>& spans, int64_t window) {
  run_backward({grads, grad_out_TNH, q_TNH, k_TKH, v_TKH, out_TNH, lse_NT},
               Problem(q_TNH, k_TKH, spans, window, LseLayout::kByHead), spans, /*adds=*/true);
}

}  // namespace tessera
