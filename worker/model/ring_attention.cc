#include "worker/model/ring_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "worker/memory/ledger.h"
#include "worker/model/context.h"
#include "worker/model/span_attention.h"

namespace tessera {
namespace {

using PendingExchange = std::unique_ptr<ContextExchange::Pending>;

// Tokens of a rank's two chunks, in the stream; their rows are those of what is sent of them.
using KeyRanges = std::array<TokenRange, 2>;

int64_t num_rows(const KeyRanges& ranges) { return ranges[0].count + ranges[1].count; }

at::Tensor flat(const at::Tensor& x, int64_t row, int64_t count) {
  return x.narrow(0, row, count).view({-1});
}

// Keys and values of a rank, or their gradients, as far as they are seen elsewhere.
struct KeyBlock {
  KeyRanges ranges;
  at::Tensor k, v;
  std::vector<PendingExchange> pending;

  void wait() {
    for (PendingExchange& exchange : pending) exchange->wait();
    pending.clear();
  }
};

class Ring {
 public:
  Ring(const Documents& documents, int64_t window)
      : cu_seqlens_(documents.cu_seqlens), part_(*documents.part), window_(window) {}

  int size() const { return part_.size; }
  int source(int step) const { return (part_.rank + size() - step) % size(); }
  int target(int step) const { return (part_.rank + step) % size(); }

  KeyRanges own_ranges() const { return {whole(part_.rank, 0), whole(part_.rank, 1)}; }

  // What rank `reader` sees of the keys of another, a range of each of its chunks.
  KeyRanges seen(int reader, int owner) const {
    KeyRanges ranges;
    int64_t row = 0;
    for (const int which : {0, 1}) {
      const TokenRange keys = whole(owner, which, /*row=*/0);
      int64_t first = keys.count, last = 0;
      for (const int of_reader : {0, 1}) {
        const TokenRange queries = whole(reader, of_reader);
        for (const AttentionSpan& span : attention_spans(cu_seqlens_, window_, queries, keys)) {
          first = std::min(first, span.key_row);
          last = std::max(last, span.key_row + span.num_keys);
        }
      }
      const int64_t count = std::max<int64_t>(0, last - first);
      ranges[which] = {keys.begin + (count > 0 ? first : 0), count, row};
      row += count;
    }
    return ranges;
  }

  // Starts to bring what this rank sees of the keys of step `step`; k and v are its own.
  KeyBlock fetch(int step, const at::Tensor& k_TKH, const at::Tensor& v_TKH) const {
    KeyBlock block = make_block(seen(part_.rank, source(step)), k_TKH, /*zero=*/false);
    const KeyRanges sent = seen(target(step), part_.rank);
    for (const int which : {0, 1}) {
      const int64_t most = most_rows(step, which) * k_TKH.size(1) * k_TKH.size(2);
      const TokenRange& to = block.ranges[which];
      if (most == 0) continue;
      for (const auto& [into, from] : {std::pair(block.k, k_TKH), std::pair(block.v, v_TKH)}) {
        block.pending.push_back(
            part_.exchange->shift(flat(into, to.row, to.count),
                                  flat(from, own_row(sent, which), sent[which].count), step, most));
      }
    }
    return block;
  }

  // For the gradients of the keys that fetch(step) brings.
  KeyBlock make_gradients(const KeyBlock& keys) const {
    return make_block(keys.ranges, keys.k, /*zero=*/true);
  }

  // Starts to send those home, and to receive what another rank has made of this one's keys.
  // `gradients` must live as it is until the result has been waited for.
  KeyBlock give_back(int step, const KeyBlock& gradients) const {
    KeyBlock block = make_block(seen(target(step), part_.rank), gradients.k, /*zero=*/false);
    for (const int which : {0, 1}) {
      const int64_t most = most_rows(step, which) * gradients.k.size(1) * gradients.k.size(2);
      const TokenRange &to = block.ranges[which], &from = gradients.ranges[which];
      if (most == 0) continue;
      for (const auto& [into, sent] :
           {std::pair(block.k, gradients.k), std::pair(block.v, gradients.v)}) {
        block.pending.push_back(part_.exchange->shift(
            flat(into, to.row, to.count), flat(sent, from.row, from.count), size() - step, most));
      }
    }
    return block;
  }

  // Waits for such, and adds it.
  void take(KeyBlock& received, const AttentionGradients& grads) const {
    received.wait();
    for (const int which : {0, 1}) {
      const TokenRange& range = received.ranges[which];
      const int64_t row = own_row(received.ranges, which);
      grads.k_TKH.narrow(0, row, range.count).add_(received.k.narrow(0, range.row, range.count));
      grads.v_TKH.narrow(0, row, range.count).add_(received.v.narrow(0, range.row, range.count));
    }
  }

  // body(spans) for this rank's queries, a chunk at a time, on the keys of each range.
  template <typename Body>
  void each_pair(const KeyRanges& ranges, const Body& body) const {
    for (const int which : {0, 1}) {
      for (const TokenRange& keys : ranges)
        body(attention_spans(cu_seqlens_, window_, whole(part_.rank, which), keys));
    }
  }

 private:
  TokenRange whole(int rank, int which, int64_t row) const {
    return {part_.chunk(rank, which) * part_.chunk_tokens, part_.chunk_tokens, row};
  }
  // By its rows on that rank.
  TokenRange whole(int rank, int which) const {
    return whole(rank, which, which * part_.chunk_tokens);
  }

  // Where a range of this rank's tokens lies in its tensors.
  int64_t own_row(const KeyRanges& ranges, int which) const {
    return ranges[which].begin - part_.begin(which) + which * part_.chunk_tokens;
  }

  // The most that any rank sends of one of its chunks.
  int64_t most_rows(int step, int which) const {
    int64_t most = 0;
    for (int owner = 0; owner < size(); ++owner)
      most = std::max(most, seen((owner + step) % size(), owner)[which].count);
    return most;
  }

  static KeyBlock make_block(const KeyRanges& ranges, const at::Tensor& like, bool zero) {
    const OwnerScope owner(Owner::kCommunication);
    const auto make = [&] {
      const std::vector<int64_t> sizes{num_rows(ranges), like.size(1), like.size(2)};
      return zero ? at::zeros(sizes, like.options().dtype(at::kFloat))
                  : at::empty(sizes, like.options());
    };
    return {ranges, make(), make(), {}};
  }

  const std::vector<int64_t>& cu_seqlens_;
  const StreamPart& part_;
  int64_t window_;
};

// Keys and values are sent from where they are.
at::Tensor contiguous(const at::Tensor& x) {
  const OwnerScope owner(Owner::kCommunication);
  return x.contiguous();
}

bool is_wide(const AttentionGradients& grads) { return grads.q_TNH.scalar_type() == at::kFloat; }

// Float32 in place of gradients that are narrower; zeros.
AttentionGradients make_sums(const AttentionGradients& grads) {
  const auto sum_of = [&](const at::Tensor& x) {
    return is_wide(grads) ? x.zero_() : at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  };
  return {sum_of(grads.q_TNH), sum_of(grads.k_TKH), sum_of(grads.v_TKH)};
}

}  // namespace

void ring_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse, const at::Tensor& q_TNH,
                        const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                        const Documents& documents, int64_t window) {
  const Ring ring(documents, window);
  const at::Tensor own_k = contiguous(k_TKH), own_v = contiguous(v_TKH);
  const AttentionSums sums = make_attention_sums(q_TNH);
  KeyBlock keys{ring.own_ranges(), own_k, own_v, {}};
  for (int step = 0; step < ring.size(); ++step) {
    KeyBlock next;
    if (step + 1 < ring.size()) next = ring.fetch(step + 1, own_k, own_v);
    ring.each_pair(keys.ranges, [&](const std::vector<AttentionSpan>& spans) {
      add_attention_(sums, {q_TNH, keys.k, keys.v, spans, window});
    });
    next.wait();
    keys = std::move(next);
  }
  out_TNH.copy_(sums.out_TNH);
  lse.view(sums.lse_NT.sizes()).copy_(sums.lse_NT);
}

void ring_attention_backward_out(const AttentionGradients& grads, const at::Tensor& grad_out_TNH,
                                 const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                 const at::Tensor& v_TKH, const at::Tensor& out_TNH,
                                 const at::Tensor& lse, const Documents& documents,
                                 int64_t window) {
  const Ring ring(documents, window);
  const at::Tensor own_k = contiguous(k_TKH), own_v = contiguous(v_TKH);
  const AttentionGradients sums = make_sums(grads);
  const at::Tensor lse_NT = lse.view({q_TNH.size(1), q_TNH.size(0)});
  KeyBlock keys{ring.own_ranges(), own_k, own_v, {}};
  KeyBlock given, returned;  // gradients on their way home, and those of this rank's keys
  for (int step = 0; step < ring.size(); ++step) {
    KeyBlock next, made;
    if (step + 1 < ring.size()) next = ring.fetch(step + 1, own_k, own_v);
    if (step > 0) made = ring.make_gradients(keys);
    const AttentionGradients into =
        step == 0 ? sums : AttentionGradients{sums.q_TNH, made.k, made.v};
    ring.each_pair(keys.ranges, [&](const std::vector<AttentionSpan>& spans) {
      add_attention_gradients_(into, {grad_out_TNH, out_TNH, lse_NT},
                               {q_TNH, keys.k, keys.v, spans, window});
    });
    if (step > 1) ring.take(returned, sums);
    if (step > 0) {
      given = std::move(made);
      returned = ring.give_back(step, given);
    }
    next.wait();
    keys = std::move(next);
  }
  if (ring.size() > 1) ring.take(returned, sums);
  if (is_wide(grads)) return;
  grads.q_TNH.copy_(sums.q_TNH);
  grads.k_TKH.copy_(sums.k_TKH);
  grads.v_TKH.copy_(sums.v_TKH);
}

}  // namespace tessera
