#include "worker/kernels/causal_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/stand_in.h"
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

// One document for one key/value head and the query heads that read it.
struct Task {
  int64_t document_begin, length, kv_head;
};

struct Problem {
  int64_t num_heads, num_kv_heads, head_dim, window;
  float scale;
  std::vector<Task> tasks;
  int64_t block_queries, block_scores;  // at most

  Problem(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const std::vector<int64_t>& cu_seqlens,
          int64_t window)
      : num_heads(q_TNH.size(1)),
        num_kv_heads(k_TKH.size(1)),
        head_dim(q_TNH.size(2)),
        window(window),
        scale(static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))) {
    int64_t longest = 0;
    for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
      const int64_t length = cu_seqlens[s + 1] - cu_seqlens[s];
      longest = std::max(longest, length);
      for (int64_t k = 0; k < num_kv_heads && length > 0; ++k)
        tasks.push_back({cu_seqlens[s], length, k});
    }
    const auto columns = [&](int64_t rows) {
      return window == 0 ? longest : std::min(longest, window + rows);
    };
    const int64_t wanted = kBlockScores / std::max<int64_t>(1, columns(kMaxBlockQueries));
    block_queries = std::clamp(wanted, kMinBlockQueries, kMaxBlockQueries);
    block_scores = block_queries * columns(block_queries);
  }

  int64_t group() const { return num_heads / num_kv_heads; }

  // For `matrices` times the scores of a block, a row a thread.
  at::Tensor make_scratch(int64_t matrices, const at::Tensor& q_TNH) const {
    return at::empty({num_kernel_threads(q_TNH), matrices * block_scores}, q_TNH.options());
  }

  // body(task, row of scratch)
  template <typename Body>
  void run(const at::Tensor& scratch, const Body& body) const {
    auto* all = scratch.data_ptr<float>();
    at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
      float* mine = all + at::get_thread_num() * scratch.size(1);
      for (int64_t i = begin; i < end; ++i) body(tasks[i], mine);
    });
  }

  // body(block) for the blocks of queries of a task.
  template <typename Body>
  void each_block(const Task& task, const Body& body) const;
};

// Queries [query, query + rows) of a document, and the keys [key, key + columns) that they see.
struct Block {
  int64_t query, rows, key, columns, window;

  // The columns that row r sees.
  int64_t first(int64_t r) const {
    return window == 0 ? 0 : std::max<int64_t>(0, query + r + 1 - window - key);
  }
  int64_t last(int64_t r) const { return query + r + 1 - key; }
};

template <typename Body>
void Problem::each_block(const Task& task, const Body& body) const {
  for (int64_t query = 0; query < task.length; query += block_queries) {
    const int64_t rows = std::min(block_queries, task.length - query);
    const int64_t key = window == 0 ? 0 : std::max<int64_t>(0, query + 1 - window);
    body(Block{query, rows, key, query + rows - key, window});
  }
}

}  // namespace

double attention_flops(const at::Tensor& q_TNH, const std::vector<int64_t>& cu_seqlens,
                       int64_t window, int num_products) {
  double pairs = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const auto length = static_cast<double>(cu_seqlens[s + 1] - cu_seqlens[s]);
    const double seen = window == 0 ? length : std::min(length, static_cast<double>(window));
    pairs += seen * (seen + 1) / 2 + (length - seen) * seen;
  }
  return 2.0 * num_products * pairs * static_cast<double>(q_TNH.size(1) * q_TNH.size(2));
}

void causal_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse, const at::Tensor& q_TNH,
                          const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                          const std::vector<int64_t>& cu_seqlens, int64_t window) {
  const Problem problem(q_TNH, k_TKH, cu_seqlens, window);
  const at::Tensor all_scratch = problem.make_scratch(1, q_TNH);
  if (q_TNH.is_meta())
    return count_kernel(attention_flops(q_TNH, cu_seqlens, window, 2),
                        {q_TNH, k_TKH, v_TKH, out_TNH, lse});
  const Heads q(q_TNH), k(k_TKH), v(v_TKH), out(out_TNH);
  auto* all_lse = lse.data_ptr<float>();
  const int64_t width = problem.head_dim;
  const CpuKernels& kernels = cpu_kernels();
  const auto attend_block = [&](const Task& task, int64_t n, const Block& b, float* scratch) {
    const int64_t query = task.document_begin + b.query, key = task.document_begin + b.key;
    const Matrix scores{scratch, b.rows, b.columns, b.columns};
    const Matrix out_block{out.at(query, n), b.rows, width, out.token};
    multiply_transposed(scores, {q.at(query, n), b.rows, width, q.token},
                        {k.at(key, task.kv_head), b.columns, width, k.token}, problem.scale);
    float* row_lse = all_lse + task.document_begin * problem.num_heads + n * task.length + b.query;
    float inverse[kMaxBlockQueries];
    for (int64_t r = 0; r < b.rows; ++r) {
      const SoftmaxSums sums =
          kernels.softmax(scratch + r * b.columns, b.first(r), b.last(r), b.columns);
      row_lse[r] = sums.largest + std::log(sums.sum);
      inverse[r] = 1 / sums.sum;
    }
    multiply(out_block, scores, {v.at(key, task.kv_head), b.columns, width, v.token}, 1.0f);
    for (int64_t r = 0; r < b.rows; ++r) {
      float* row = out_block.data + r * out_block.stride;
      for (int64_t h = 0; h < width; ++h) row[h] *= inverse[r];
    }
  };
  problem.run(all_scratch, [&](const Task& task, float* scratch) {
    for (int64_t i = 0; i < problem.group(); ++i) {
      const int64_t n = task.kv_head * problem.group() + i;
      problem.each_block(task, [&](const Block& b) { attend_block(task, n, b, scratch); });
    }
  });
}

void causal_attention_backward_out(const AttentionGradients& grads, const at::Tensor& grad_out_TNH,
                                   const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                   const at::Tensor& v_TKH, const at::Tensor& out_TNH,
                                   const at::Tensor& lse, const std::vector<int64_t>& cu_seqlens,
                                   int64_t window) {
  const Problem problem(q_TNH, k_TKH, cu_seqlens, window);
  const at::Tensor all_scratch = problem.make_scratch(2, q_TNH);
  if (q_TNH.is_meta()) {
    return count_kernel(
        attention_flops(q_TNH, cu_seqlens, window, 5),
        {q_TNH, k_TKH, v_TKH, out_TNH, lse, grad_out_TNH, grads.q_TNH, grads.k_TKH, grads.v_TKH});
  }
  const Heads q(q_TNH), k(k_TKH), v(v_TKH), out(out_TNH), grad_out(grad_out_TNH);
  const Heads grad_q(grads.q_TNH), grad_k(grads.k_TKH), grad_v(grads.v_TKH);
  const auto* all_lse = lse.const_data_ptr<float>();
  const int64_t width = problem.head_dim;
  const CpuKernels& kernels = cpu_kernels();
  const auto block_backward = [&](const Task& task, int64_t n, const Block& b, float* scratch) {
    const int64_t query = task.document_begin + b.query, key = task.document_begin + b.key;
    const auto queries = [&](const Heads& x) {
      return Matrix{x.at(query, n), b.rows, width, x.token};
    };
    const auto keys = [&](const Heads& x) {
      return Matrix{x.at(key, task.kv_head), b.columns, width, x.token};
    };
    const Matrix scores{scratch, b.rows, b.columns, b.columns};
    const Matrix gradient{scratch + b.rows * b.columns, b.rows, b.columns, b.columns};
    multiply_transposed(scores, queries(q), keys(k), problem.scale);
    const float* row_lse =
        all_lse + task.document_begin * problem.num_heads + n * task.length + b.query;
    for (int64_t r = 0; r < b.rows; ++r) {
      kernels.probabilities(scores.data + r * b.columns, row_lse[r], b.first(r), b.last(r),
                            b.columns);
    }
    add_transposed_product(keys(grad_v), scores, queries(grad_out), 1.0f);
    multiply_transposed(gradient, queries(grad_out), keys(v), 1.0f);
    for (int64_t r = 0; r < b.rows; ++r) {
      const float mean = kernels.dot(grad_out.at(query + r, n), out.at(query + r, n), width);
      kernels.score_gradient(gradient.data + r * b.columns, scores.data + r * b.columns, mean,
                             b.columns);
    }
    multiply(queries(grad_q), gradient, keys(k), problem.scale);
    add_transposed_product(keys(grad_k), gradient, queries(q), problem.scale);
  };
  problem.run(all_scratch, [&](const Task& task, float* scratch) {
    for (int64_t t = task.document_begin; t < task.document_begin + task.length; ++t) {
      std::fill_n(grad_k.at(t, task.kv_head), width, 0.0f);
      std::fill_n(grad_v.at(t, task.kv_head), width, 0.0f);
    }
    for (int64_t i = 0; i < problem.group(); ++i) {
      const int64_t n = task.kv_head * problem.group() + i;
      problem.each_block(task, [&](const Block& b) { block_backward(task, n, b, scratch); });
    }
  });
}

}  // namespace tessera
