#include "worker/data/jinja/frame.h"

#include "worker/data/jinja/text.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxSteps = 10'000'000;  // a few seconds
constexpr int kMaxDepth = 1000;            // of evaluations inside each other
constexpr size_t kMaxTextBytes = size_t{64} << 20;

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent_) {
    for (const auto& variable : scope->variables_) {
      if (variable.first == name) return &variable.second;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& variable : variables_) {
    if (variable.first != name) continue;
    variable.second = std::move(value);
    return;
  }
  variables_.emplace_back(name, std::move(value));
}

Rendering::~Rendering() {
  for (const auto& attributes : namespaces_) attributes->entries.clear();
}

void Rendering::step(int64_t count) {
  steps_ += count;
  if (steps_ > kMaxSteps) {
    throw Error("the template takes more than " + std::to_string(kMaxSteps) + " steps");
  }
}

void Rendering::drop_scopes(size_t count) {
  while (scopes_.size() > count) scopes_.pop_back();
}

void Rendering::enter() {
  step();
  if (++depth_ > kMaxDepth) {
    --depth_;
    throw Error("the template goes more than " + std::to_string(kMaxDepth) + " levels deep");
  }
}

int64_t Rendering::num_output_characters() {
  const auto added = std::string_view(output_).substr(counted_bytes_);
  counted_characters_ += static_cast<int64_t>(num_code_points(added));
  counted_bytes_ = output_.size();
  return counted_characters_;
}

void Frame::write(std::string_view text) {
  check_text_size(out_->size() + text.size());
  *out_ += text;
}

void check_text_size(size_t bytes) {
  if (bytes > kMaxTextBytes) {
    throw Error("a text of the template is above " + std::to_string(kMaxTextBytes >> 20) + " MiB");
  }
}

}  // namespace tessera::jinja
