#include "worker/memory/side_stream.h"

namespace tessera {
namespace {

class DirectStream final : public SideStream {
 public:
  using SideStream::join;
  void run(const std::function<void()>& work) override { work(); }
  Mark mark() override { return nullptr; }
  void join(const Mark&) override {}
  void finish() override {}
};

}  // namespace

std::unique_ptr<SideStream> make_side_stream(at::Device device) {
  if (device.is_cuda()) return make_cuda_side_stream(device);
  return std::make_unique<DirectStream>();
}

}  // namespace tessera
