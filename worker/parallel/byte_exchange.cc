#include "worker/parallel/byte_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

std::vector<int64_t> sizes_of_all(Collectives& group, at::Device device, int64_t mine) {
  at::Tensor sizes = at::zeros({group.size()}, at::kLong);
  sizes.mutable_data_ptr<int64_t>()[group.rank()] = mine;
  sizes = sizes.to(device);
  group.all_reduce_sum(sizes);
  sizes = sizes.cpu();
  const auto* begin = sizes.const_data_ptr<int64_t>();
  return {begin, begin + group.size()};
}

at::Tensor gather(Collectives& group, const at::Tensor& input) {
  at::Tensor all = at::empty({input.numel() * group.size()}, input.options());
  group.all_gather(all, input)->wait();
  return all;
}

}  // namespace

std::vector<std::string> all_gather_bytes(Collectives& group, at::Device device,
                                          const std::string& mine) {
  if (group.size() == 1) return {mine};
  const OwnerScope owner(Owner::kCommunication);
  const std::vector<int64_t> sizes = sizes_of_all(group, device, std::ssize(mine));
  const int64_t most = std::max<int64_t>(1, std::ranges::max(sizes));
  at::Tensor input = at::zeros({most}, at::kByte);
  std::memcpy(input.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor all = gather(group, input.to(device)).cpu();
  std::vector<std::string> out;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto* begin = static_cast<const char*>(all.const_data_ptr()) + most * rank;
    out.emplace_back(begin, static_cast<size_t>(sizes[rank]));
  }
  return out;
}

void rehearse_all_gather_bytes(Collectives& group, at::Device device, int64_t most) {
  if (group.size() == 1) return;
  const OwnerScope owner(Owner::kCommunication);
  const auto host = at::TensorOptions(host_device(device));
  group.all_reduce_sum(at::empty({group.size()}, host.dtype(at::kLong)).to(device));
  gather(group, at::empty({std::max<int64_t>(1, most)}, host.dtype(at::kByte)).to(device));
}

std::string broadcast_bytes(Collectives& group, at::Device device, const std::string& mine) {
  return all_gather_bytes(group, device, group.rank() == 0 ? mine : "").front();
}

}  // namespace tessera
