// What a rendering holds while it runs.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/data/jinja/value.h"

namespace tessera::jinja {

// A part of the output, in characters (code points).
struct CharacterRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Names of a block: of a macro's body, of one turn of a loop. Few, so they are looked up one by
// one.
class Scope {
 public:
  explicit Scope(Scope* parent) : parent_(parent) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // In this scope or one around it. Null where there is none.
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);

 private:
  Scope* parent_;
  std::vector<std::pair<std::string, Value>> variables_;
};

// One rendering: its limits, its output, and its scopes, which live until it ends (macros refer to
// the scope that they were made in).
class Rendering {
 public:
  explicit Rendering(std::time_t now) : now_(now) {}
  ~Rendering();
  Rendering(const Rendering&) = delete;
  Rendering& operator=(const Rendering&) = delete;

  // Called for each statement, expression and turn of a loop. Throws Error at the limit.
  void step(int64_t count = 1);
  Scope* new_scope(Scope* parent) { return &scopes_.emplace_back(parent); }
  // Forgets the scopes made since there were `count`, where no macro may refer to them.
  size_t num_scopes() const { return scopes_.size(); }
  void drop_scopes(size_t count);
  void note_macro() { ++num_macros_; }
  int64_t num_macros() const { return num_macros_; }
  // Namespaces may hold each other; they are emptied at the end.
  void keep(std::shared_ptr<Dict> attributes) { namespaces_.push_back(std::move(attributes)); }

  void enter();  // a nested evaluation; throws Error where they are too deep
  void leave() { --depth_; }

  std::string& output() { return output_; }
  int64_t num_output_characters();
  std::vector<CharacterRange>& generated() { return generated_; }
  std::time_t now() const { return now_; }

 private:
  int64_t steps_ = 0;
  int depth_ = 0;
  int64_t num_macros_ = 0;
  std::deque<Scope> scopes_;
  std::vector<std::shared_ptr<Dict>> namespaces_;
  std::string output_;
  size_t counted_bytes_ = 0;
  int64_t counted_characters_ = 0;
  std::vector<CharacterRange> generated_;
  std::time_t now_;
};

// Where a statement runs: names are looked up in `scope`, text goes to `out`.
class Frame {
 public:
  Frame(Rendering& rendering, Scope* scope, std::string* out)
      : rendering_(&rendering), scope_(scope), out_(out) {}

  Rendering& rendering() const { return *rendering_; }
  Scope& scope() const { return *scope_; }
  std::string& out() const { return *out_; }
  void write(std::string_view text);
  // With names of its own.
  Frame inner() const { return {*rendering_, rendering_->new_scope(scope_), out_}; }
  Frame inner_of(Scope* scope, std::string* out) const {
    return {*rendering_, rendering_->new_scope(scope), out};
  }

 private:
  Rendering* rendering_;
  Scope* scope_;
  std::string* out_;
};

// Throws Error for a text above the limit on its length.
void check_text_size(size_t bytes);

}  // namespace tessera::jinja
