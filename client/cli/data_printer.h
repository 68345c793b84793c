// Rows of tokens for people, or as JSON.
#pragma once

#include <string>
#include <string_view>

#include "client/cli/terminal.h"
#include "tessera/v1/inspect.pb.h"

namespace tessera::cli {

// With colours, tokens of the loss are green and others grey, in two shades in turn; without, what
// the loss counts stands between {+ and +}.
class DataPrinter {
 public:
  DataPrinter(const Terminal& terminal, bool json) : terminal_(terminal), json_(json) {}

  // A note goes to standard error. Requires that the reply is no failure.
  void print(const v1::InspectReply& reply);

 private:
  void print_data(const v1::InspectedData& data) const;
  void print_row(const v1::InspectedRow& row) const;
  void print_document(const std::string& name, const v1::InspectedDocument& document) const;
  std::string coloured(const v1::InspectedDocument& document) const;
  static std::string marked(const v1::InspectedDocument& document);

  const Terminal& terminal_;
  const bool json_;
};

// Line ends and tabs stay, other control characters become "?": what documents hold cannot drive
// the terminal.
std::string without_controls(std::string_view text);

}  // namespace tessera::cli
