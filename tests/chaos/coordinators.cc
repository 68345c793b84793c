#include "tests/chaos/coordinators.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "client/cpp/client.h"

namespace tessera::chaos {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{20};

}  // namespace

Coordinators::Coordinators(const std::string& program, const std::filesystem::path& directory,
                           const std::string& postgres) {
  // No dashboard: its threads tell nothing here. Machines are never given up: none goes away.
  std::vector<std::string> flags{"--http", "", "--fence", "1h"};
  if (postgres.empty()) {
    all_.push_back(std::make_unique<support::TesseradProcess>(program, directory, flags));
    return;
  }
  for (const char* word : {"--store", postgres.c_str(), "--leader-lease", "1s"}) {
    flags.emplace_back(word);
  }
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directories(directory / name);
    all_.push_back(std::make_unique<support::TesseradProcess>(program, directory / name, flags));
  }
}

std::string Coordinators::address() const {
  std::string addresses;
  for (const auto& process : all_) {
    addresses += (addresses.empty() ? "" : ",") + process->address();
  }
  return addresses;
}

std::optional<size_t> Coordinators::leader() const {
  for (size_t i = 0; i < all_.size(); ++i) {
    if (Client::connect(all_[i]->address())->nodes().ok()) return i;
  }
  return std::nullopt;
}

bool Coordinators::await_serving(std::chrono::seconds patience) const {
  if (all_.size() == 1) return all_.front()->await_serving(patience);
  const auto give_up = SteadyClock::now() + patience;
  while (!leader()) {
    if (SteadyClock::now() > give_up) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

bool Coordinators::any_ended() {
  bool any = false;
  for (const auto& process : all_) any |= process->ended().has_value();
  return any;
}

}  // namespace tessera::chaos
