// What both builds' make_side_stream() give for devices other than CUDA's.
#pragma once

#include "worker/memory/side_stream.h"

namespace tessera {

class DirectStream final : public SideStream {
 public:
  void run(const std::function<void()>& work) override { work(); }
  void join() override {}
  void finish() override {}
};

}  // namespace tessera
