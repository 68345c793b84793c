#include "worker/generate/kv_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <string>

#include "worker/kernels/cpu_kernels.h"
#include "worker/memory/host_memory.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

BlockId block_of_layer(size_t layer) { return block_id("model.layers." + std::to_string(layer)); }

}  // namespace

int64_t kv_page_bytes(const ModelConfig& config, at::ScalarType dtype) {
  return 2 * config.num_layers * config.num_kv_heads * config.head_dim * kPageTokens *
         static_cast<int64_t>(c10::elementSize(dtype));
}

KvCache::KvCache(const ModelConfig& config, const Options& options)
    : config_(config), options_(options), page_bytes_(kv_page_bytes(config, options.dtype)) {}

void KvCache::allocate() {
  const OwnerScope owner(Owner::kKvCache);
  const auto options = at::TensorOptions(options_.device).dtype(options_.dtype);
  const int64_t heads = config_.num_kv_heads, width = config_.head_dim;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const BlockScope block(block_of_layer(layer));
    layers_.push_back({at::empty({options_.num_pages, heads, width, kPageTokens}, options),
                       at::empty({options_.num_pages, heads, kPageTokens, width}, options)});
  }
}

void KvCache::drop() {
  layers_.clear();
  kept_ = {};
}

at::Tensor KvCache::page_index(const std::vector<int32_t>& pages) const {
  return at::tensor(std::vector<int64_t>(pages.begin(), pages.end()), at::TensorOptions(at::kLong))
      .to(options_.device);
}

void KvCache::move_to_host(const std::vector<int32_t>& pages) {
  const OwnerScope owner(Owner::kKvCache);
  kept_.pages = pages;
  const at::Tensor index = page_index(pages);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const BlockScope block(block_of_layer(layer));
    const auto moved = [&](at::Tensor& from) {
      const at::Tensor packed = from.index_select(0, index);
      from.reset();
      at::Tensor host = empty_host(packed.sizes(), options_.dtype, options_.device);
      copy_across(host, packed);
      return host;
    };
    const at::Tensor keys = moved(layers_[layer].keys_PKHJ);
    kept_.layers.push_back({keys, moved(layers_[layer].values_PKJH)});
  }
  layers_.clear();
}

void KvCache::move_back() {
  allocate();
  const at::Tensor index = page_index(kept_.pages);
  for (size_t layer = 0; layer < kept_.layers.size(); ++layer) {
    const OwnerScope owner(Owner::kKvCache);
    const BlockScope block(block_of_layer(layer));
    const auto moved = [&](const at::Tensor& to, at::Tensor& host) {
      at::Tensor packed = at::empty(host.sizes(), to.options());
      copy_across(packed, host);
      at::Tensor(to).index_copy_(0, index, packed);
      host.reset();
    };
    moved(layers_[layer].keys_PKHJ, kept_.layers[layer].keys_PKHJ);
    moved(layers_[layer].values_PKJH, kept_.layers[layer].values_PKJH);
  }
  kept_ = {};
}

void KvCache::copy_pages(const std::vector<PageCopy>& copies) {
  for (const PageTensors& layer : layers_) {
    for (const PageCopy& copy : copies) {
      for (const at::Tensor* pages : {&layer.keys_PKHJ, &layer.values_PKJH})
        pages->select(0, copy.to).copy_(pages->select(0, copy.from));
    }
  }
}

at::Tensor KvCache::attend(int64_t layer, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                           const at::Tensor& v_TKH, int64_t window) {
  at::Tensor out_TNH = at::empty(q_TNH.sizes(), q_TNH.options());
  // Rows behind the spans are of no sequence.
  const int64_t used = spans_.empty() ? 0 : spans_.back().query_row + spans_.back().num_queries;
  if (used < out_TNH.size(0)) out_TNH.narrow(0, used, out_TNH.size(0) - used).zero_();
  store_in_pages(layers_[layer], k_TKH, v_TKH, spans_);
  paged_attention_out(out_TNH, q_TNH, layers_[layer], spans_, window);
  return out_TNH;
}

}  // namespace tessera
