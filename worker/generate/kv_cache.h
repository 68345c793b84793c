// The keys and values of all sequences, in pages, of all layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/generate/scheduler.h"
#include "worker/kernels/paged_attention.h"
#include "worker/model/attention_cache.h"
#include "worker/model/config.h"

namespace tessera {

// Bytes that a page takes in all layers together.
int64_t kv_page_bytes(const ModelConfig& config, at::ScalarType dtype);

// Without memory until allocate(). Its memory is charged to Owner::kKvCache and the layer's block.
class KvCache : public AttentionCache {
 public:
  struct Options {
    at::ScalarType dtype = at::kFloat;  // the model's compute dtype
    at::Device device = at::kCPU;
    int64_t num_pages = 0;
  };
  KvCache(const ModelConfig& config, const Options& options);

  // What it takes when it is there.
  int64_t bytes() const { return options_.num_pages * page_bytes_; }
  int64_t page_bytes() const { return page_bytes_; }

  bool is_allocated() const { return !layers_.empty(); }
  // Pages hold nothing then.
  void allocate();
  void drop();
  // The pages go to host memory, all others are lost, and the cache is dropped.
  void move_to_host(const std::vector<int32_t>& pages);
  // The cache is there again, with those pages where they were.
  void move_back();
  bool is_on_host() const { return !kept_.pages.empty(); }

  void copy_pages(const std::vector<PageCopy>& copies);
  // What attend() will be asked for, layer by layer: spans one behind the other. Rows behind them
  // attend to nothing, and get zeros. The pages must stay as they are meanwhile.
  void begin_pass(std::vector<PagedSpan> spans) { spans_ = std::move(spans); }

  at::Tensor attend(int64_t layer, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                    const at::Tensor& v_TKH, int64_t window) override;

 private:
  // Pages [n] by their numbers, and what they hold.
  struct KeptPages {
    std::vector<int32_t> pages;
    std::vector<PageTensors> layers;
  };
  at::Tensor page_index(const std::vector<int32_t>& pages) const;

  ModelConfig config_;
  Options options_;
  int64_t page_bytes_;
  std::vector<PageTensors> layers_;
  KeptPages kept_;
  std::vector<PagedSpan> spans_;
};

}  // namespace tessera
