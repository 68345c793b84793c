// Prints a job's events as they come: for a terminal, for a log file, or for a program.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "client/cli/progress.h"
#include "client/cli/terminal.h"
#include "tessera/v1/coordinator.pb.h"

namespace tessera::cli {

class EventPrinter {
 public:
  virtual ~EventPrinter() = default;
  virtual void print(const v1::Event& event) = 0;
  // Ends a line that is still being rewritten.
  virtual void finish() {}
};

// For --json and --events: one ProtoJSON Event a line, zero values included.
std::unique_ptr<EventPrinter> make_json_printer(std::ostream& out);

// For people: the progress line is rewritten in place on a terminal; elsewhere each step is a
// line. `progress` is kept up to date by whoever calls print(), and before it.
std::unique_ptr<EventPrinter> make_text_printer(const Terminal& terminal, const Progress& progress);

// A message as one line of ProtoJSON.
std::string to_json(const google::protobuf::Message& message);

}  // namespace tessera::cli
