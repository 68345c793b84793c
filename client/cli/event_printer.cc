#include "client/cli/event_printer.h"

#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/util/json_util.h>

#include "client/cli/format.h"

namespace tessera::cli {
namespace {

constexpr size_t kMaxLineWidth = 4096;

class JsonPrinter : public EventPrinter {
 public:
  explicit JsonPrinter(std::ostream& out) : out_(out) {}

  void print(const v1::Event& event) override { out_ << to_json(event) << '\n' << std::flush; }

 private:
  std::ostream& out_;
};

class LinePrinter : public EventPrinter {
 public:
  LinePrinter(const Terminal& terminal, const Progress& progress)
      : terminal_(terminal), progress_(progress) {}

  void print(const v1::Event& event) override {
    const std::string text = event.has_step() ? progress_.line() : describe_event(event);
    if (!text.empty()) terminal_.out << clip(text, kMaxLineWidth) << '\n' << std::flush;
  }

 private:
  const Terminal& terminal_;
  const Progress& progress_;
};

// The progress line stays the last one: other lines are printed over it and it is drawn again
// below.
class TtyPrinter : public EventPrinter {
 public:
  TtyPrinter(const Terminal& terminal, const Progress& progress)
      : terminal_(terminal), progress_(progress) {}

  void print(const v1::Event& event) override {
    const std::string text = describe_event(event);
    const std::string line = progress_.line();
    if (text.empty() && line == shown_) return;
    terminal_.out << "\r\033[K";
    if (!text.empty()) terminal_.out << decorate(event, clip(text, kMaxLineWidth)) << '\n';
    terminal_.out << clip(line, terminal_.width - 1) << std::flush;
    shown_ = line;
  }

  void finish() override {
    if (!shown_.empty()) terminal_.out << '\n' << std::flush;
    shown_.clear();
  }

 private:
  std::string decorate(const v1::Event& event, const std::string& text) const {
    if (event.has_log()) {
      return event.log().severity() == v1::LogLine::ERROR ? terminal_.paint(text, "31")
                                                          : terminal_.paint(text, "2");
    }
    if (!event.has_state()) return text;
    return terminal_.paint(text, event.state().state() == v1::Job::FAILED ? "1;31" : "1");
  }

  const Terminal& terminal_;
  const Progress& progress_;
  std::string shown_;
};

}  // namespace

std::unique_ptr<EventPrinter> make_json_printer(std::ostream& out) {
  return std::make_unique<JsonPrinter>(out);
}

std::unique_ptr<EventPrinter> make_text_printer(const Terminal& terminal,
                                                const Progress& progress) {
  if (terminal.out_is_tty) return std::make_unique<TtyPrinter>(terminal, progress);
  return std::make_unique<LinePrinter>(terminal, progress);
}

std::string to_json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  GOOGLE_CHECK(status.ok()) << status.ToString();
  return text;
}

}  // namespace tessera::cli
