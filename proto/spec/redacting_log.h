// Log lines without secrets, in a program that logs with spdlog.
#pragma once

#include <spdlog/pattern_formatter.h>

#include <memory>
#include <string>

#include "proto/spec/redact.h"

namespace tessera::spec {

// Formats as spdlog does by a pattern, once secrets (redact.h) are taken out of what is said.
class RedactingFormatter final : public spdlog::formatter {
 public:
  // spdlog's own pattern.
  RedactingFormatter() = default;
  explicit RedactingFormatter(std::string pattern)
      : pattern_(pattern), inner_(std::move(pattern)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const std::string clean = redact({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg copy = message;
    copy.payload = clean;
    inner_.format(copy, line);
    message.color_range_start = copy.color_range_start;
    message.color_range_end = copy.color_range_end;
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<RedactingFormatter>(pattern_);
  }

 private:
  std::string pattern_ = "%+";
  spdlog::pattern_formatter inner_{pattern_};
};

}  // namespace tessera::spec
