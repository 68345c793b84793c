// The coordinator that is killed: one tesserad on SQLite, or two that share a PostgreSQL database,
// of which one leads.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/tesserad_process.h"

namespace tessera::chaos {

class Coordinators {
 public:
  // `postgres`: the URL of the database; empty: one on SQLite. Each has a directory of its own in
  // `directory`.
  Coordinators(const std::string& program, const std::filesystem::path& directory,
               const std::string& postgres);

  // As clients and agents are given it.
  std::string address() const;
  size_t size() const { return all_.size(); }
  support::TesseradProcess& at(size_t index) { return *all_.at(index); }
  // The one that takes calls now; none: nobody does.
  std::optional<size_t> leader() const;
  // Whether one takes calls within `patience`.
  bool await_serving(std::chrono::seconds patience) const;
  // Whether any ended by itself. Reaps it.
  bool any_ended();

 private:
  std::vector<std::unique_ptr<support::TesseradProcess>> all_;
};

}  // namespace tessera::chaos
