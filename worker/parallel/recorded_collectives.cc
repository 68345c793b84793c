#include "worker/parallel/recorded_collectives.h"

#include <utility>

#include "worker/parallel/watched_work.h"

namespace tessera {
namespace {

class RecordedWork final : public Work {
 public:
  RecordedWork(std::unique_ptr<Work> inner, FlightRecorder& recorder, int64_t number)
      : inner_(std::move(inner)), recorder_(recorder), number_(number) {}
  void wait() override {
    recorder_.wait(number_);
    inner_->wait();
    recorder_.finish(number_);
  }

 private:
  std::unique_ptr<Work> inner_;
  FlightRecorder& recorder_;
  const int64_t number_;
};

class RecordedCollectives final : public Collectives, public WorkWatcher {
 public:
  RecordedCollectives(Collectives& inner, const char* name, FlightRecorder& recorder)
      : inner_(inner), name_(name), recorder_(recorder) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    return started("all_gather", input.nbytes(), [&] { return inner_.all_gather(output, input); });
  }
  std::unique_ptr<Work> reduce_scatter_add(at::Tensor output, at::Tensor input) override {
    return started("reduce_scatter", input.nbytes(),
                   [&] { return inner_.reduce_scatter_add(output, input); });
  }
  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input) override {
    return started("all_to_all", input.nbytes(), [&] { return inner_.all_to_all(output, input); });
  }
  std::unique_ptr<Work> shift(at::Tensor output, at::Tensor input, int distance,
                              int64_t most) override {
    return started("shift", input.nbytes(),
                   [&] { return inner_.shift(output, input, distance, most); });
  }
  void all_reduce_sum(at::Tensor values) override {
    blocking("all_reduce", values.nbytes(), [&] { inner_.all_reduce_sum(values); });
  }
  void barrier() override {
    blocking("barrier", 0, [&] { inner_.barrier(); });
  }
  std::unique_ptr<Work> watch(const char* kind, int64_t bytes,
                              std::unique_ptr<Work> work) override {
    return started(kind, static_cast<size_t>(bytes),
                   [&] { return watched(inner_, kind, bytes, std::move(work)); });
  }

 private:
  // Told before it is called: a call may wait for room, and then hangs in there.
  template <typename Start>
  std::unique_ptr<Work> started(const char* kind, size_t bytes, const Start& start) {
    if (size() == 1) return start();
    const int64_t number = issue(kind, bytes);
    return std::make_unique<RecordedWork>(start(), recorder_, number);
  }

  template <typename Call>
  void blocking(const char* kind, size_t bytes, const Call& call) {
    if (size() == 1) return call();
    const int64_t number = issue(kind, bytes);
    recorder_.wait(number);
    call();
    recorder_.finish(number);
  }

  int64_t issue(const char* kind, size_t bytes) {
    return recorder_.issue(name_, ++sequence_, kind, static_cast<int64_t>(bytes));
  }

  Collectives& inner_;
  const char* const name_;
  FlightRecorder& recorder_;
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Collectives> make_recorded_collectives(Collectives& inner, const char* name,
                                                       FlightRecorder& recorder) {
  return std::make_unique<RecordedCollectives>(inner, name, recorder);
}

Mesh recorded(const Mesh& mesh, FlightRecorder& recorder) {
  // In the order in which a mesh has its groups.
  constexpr const char* kNames[] = {"world", "dp_shard", "dp_replicate", "cp", "data"};
  const char* const* name = kNames;
  return mesh.wrapped([&](Collectives& group) {
    return std::shared_ptr(make_recorded_collectives(group, *name++, recorder));
  });
}

}  // namespace tessera
