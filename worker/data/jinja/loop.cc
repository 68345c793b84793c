// {% for %} and its `loop`.
#include <functional>

#include "worker/data/jinja/members.h"
#include "worker/data/jinja/scope_mark.h"
#include "worker/data/jinja/statements.h"

namespace tessera::jinja {
namespace {

// The items that meet the condition, found one by one: the body may change what it depends on.
class Items {
 public:
  using Condition = std::function<bool(const Value&)>;
  Items(std::vector<Value> items, Condition condition)
      : items_(std::move(items)), condition_(std::move(condition)) {}

  // Null at the end. Valid until the next call.
  const Value* next() {
    while (next_ < items_.size()) {
      const Value& item = items_[next_++];
      if (!condition_ || condition_(item)) return &item;
    }
    return nullptr;
  }

  bool is_filtered() const { return condition_ != nullptr; }
  size_t size() const { return items_.size(); }
  // Applies the condition to the rest now. Returns how many meet it.
  size_t settle() {
    std::vector<Value> rest;
    while (const Value* item = next()) rest.push_back(*item);
    items_ = std::move(rest);
    next_ = 0;
    condition_ = nullptr;
    return items_.size();
  }
  void stop() {
    next_ = items_.size();
    condition_ = nullptr;
  }

 private:
  std::vector<Value> items_;
  size_t next_ = 0;
  Condition condition_;
};

class Loop final : public Object {
 public:
  using Recurse = std::function<Value(const Value& items, int64_t depth)>;
  Loop(Items items, int64_t depth, Recurse recurse)
      : items_(std::move(items)), depth_(depth), recurse_(std::move(recurse)) {}

  bool advance() {
    if (!has_peeked_) peek();
    has_peeked_ = false;
    if (!after_) return false;
    previous_ = std::move(current_);
    current_ = std::move(*after_);
    after_.reset();
    ++index_;
    return true;
  }
  const Value& current() const { return current_; }

  // The scopes it refers to go.
  void end() {
    items_.stop();
    recurse_ = nullptr;
  }

  std::string repr(int) const override { return "<LoopContext>"; }
  bool is_callable() const override { return true; }

  Value call(Frame&, const Arguments& arguments) override {
    if (!recurse_) throw Error("loop(...) needs {% for ... recursive %}, and to be inside of it");
    if (arguments.positional.size() != 1) throw Error("loop() takes one argument");
    return recurse_(arguments.positional[0], depth_ + 1);
  }

  std::optional<Value> attribute(std::string_view name) const override {
    auto& self = const_cast<Loop&>(*this);  // looking ahead changes no value seen from outside
    if (name == "index") return index_ + 1;
    if (name == "index0") return index_;
    if (name == "first") return index_ == 0;
    if (name == "last") return !self.peek();
    if (name == "length") return self.length();
    if (name == "revindex") return self.length() - index_;
    if (name == "revindex0") return self.length() - index_ - 1;
    if (name == "depth") return depth_ + 1;
    if (name == "depth0") return depth_;
    if (name == "previtem") {
      return index_ == 0 ? Value::undefined("there is no previous item") : previous_;
    }
    if (name == "nextitem") {
      const Value* next = self.peek();
      return next ? *next : Value::undefined("there is no next item");
    }
    return method(name);
  }

 private:
  const Value* peek() {
    if (!has_peeked_) {
      const Value* next = items_.next();
      after_ = next ? std::optional<Value>(*next) : std::nullopt;
      has_peeked_ = true;
    }
    return after_ ? &*after_ : nullptr;
  }

  int64_t length() {
    if (length_ < 0) {
      const bool whole = !items_.is_filtered();
      const auto seen = index_ + 1 + (has_peeked_ && after_ ? 1 : 0);
      length_ = whole ? static_cast<int64_t>(items_.size())
                      : static_cast<int64_t>(items_.settle()) + seen;
    }
    return length_;
  }

  // Found while the loop runs, whose object outlives the call.
  std::optional<Value> method(std::string_view name) const {
    if (name == "cycle") {
      return make_function("cycle", [index = index_](Frame&, const Arguments& arguments) {
        const auto& values = arguments.positional;
        if (values.empty()) throw Error("loop.cycle() has nothing to choose from");
        return values[static_cast<size_t>(index) % values.size()];
      });
    }
    if (name == "changed") {
      auto last = last_changed_;
      return make_function("changed", [last](Frame&, const Arguments& arguments) -> Value {
        Value now = Value::tuple(arguments.positional);
        if (*last && equals(**last, now)) return false;
        *last = now;
        return true;
      });
    }
    return std::nullopt;
  }

  Items items_;
  int64_t depth_;
  Recurse recurse_;
  int64_t index_ = -1;
  int64_t length_ = -1;
  bool has_peeked_ = false;
  std::optional<Value> after_;
  Value current_;
  Value previous_;
  std::shared_ptr<std::optional<Value>> last_changed_ = std::make_shared<std::optional<Value>>();
};

// Ends a loop however its body is left.
class LoopEnd {
 public:
  explicit LoopEnd(Loop& loop) : loop_(loop) {}
  ~LoopEnd() { loop_.end(); }
  LoopEnd(const LoopEnd&) = delete;
  LoopEnd& operator=(const LoopEnd&) = delete;

 private:
  Loop& loop_;
};

}  // namespace

Flow For::run(Frame& frame) const {
  const Value values = items->evaluate(frame);
  loop(values, &frame.scope(), &frame.out(), frame.rendering(), 0);
  return Flow::kNext;
}

void For::loop(const Value& values, Scope* outer, std::string* out, Rendering& rendering,
               int64_t depth) const {
  Frame around(rendering, outer, out);
  Items::Condition meets;
  if (condition) {
    meets = [&](const Value& item) {
      rendering.step();
      const ScopeMark mark(rendering);
      Frame test = around.inner();
      assign(target, item, test);
      return truthy(condition->evaluate(test));
    };
  }
  Loop::Recurse recurse;
  if (is_recursive) {
    recurse = [&](const Value& children, int64_t child_depth) -> Value {
      std::string text;
      rendering.enter();
      loop(children, outer, &text, rendering, child_depth);
      rendering.leave();
      return text;
    };
  }
  const auto state =
      std::make_shared<Loop>(Items(elements(values), std::move(meets)), depth, std::move(recurse));
  const LoopEnd end(*state);
  bool is_empty = true;
  while (state->advance()) {
    is_empty = false;
    rendering.step();
    const ScopeMark mark(rendering);
    Frame turn = around.inner();
    turn.scope().set("loop", std::shared_ptr<Object>(state));
    assign(target, state->current(), turn);
    if (jinja::execute(body, turn) == Flow::kBreak) return;
  }
  if (!is_empty) return;
  const ScopeMark mark(rendering);
  Frame turn = around.inner();
  jinja::execute(otherwise, turn);
}

}  // namespace tessera::jinja
