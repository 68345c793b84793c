#include "client/cli/data_printer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/event_printer.h"

namespace tessera::cli {
namespace {

constexpr const char* kLabelColours[] = {"32", "92"};
constexpr const char* kOtherColours[] = {"90", "37"};

std::string counted(int64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string token_counts(int64_t num_tokens, int64_t num_labels) {
  return absl::StrCat(counted(num_tokens, "token"), ", ", num_labels, " in the loss");
}

int64_t num_labels(const v1::InspectedDocument& document) {
  return std::count(document.labels().begin(), document.labels().end(), true);
}

}  // namespace

std::string without_controls(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      out += '?';
      ++i;
    } else {
      const bool is_control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
      out += is_control ? '?' : text[i];
    }
  }
  return out;
}

void DataPrinter::print(const v1::InspectReply& reply) {
  if (reply.has_note()) {
    terminal_.err << without_controls(reply.note()) << '\n' << std::flush;
  } else if (json_) {
    terminal_.out << to_json(reply) << '\n';
  } else if (reply.has_data()) {
    print_data(reply.data());
  } else {
    print_row(reply.row());
  }
}

void DataPrinter::print_data(const v1::InspectedData& data) const {
  const double share = data.num_tokens() > 0 ? 100.0 * static_cast<double>(data.num_labels()) /
                                                   static_cast<double>(data.num_tokens())
                                             : 0.0;
  terminal_.out << counted(data.num_rows(), "row") << " of "
                << counted(data.num_documents(), "document") << ": "
                << token_counts(data.num_tokens(), data.num_labels())
                << absl::StrFormat(" (%.1f%%)", share)
                << (data.max_documents() > 0 ? absl::StrCat("; of each source at most ",
                                                            data.max_documents(), " are read")
                                             : "")
                << '\n';
  terminal_.out << (terminal_.colour ? absl::StrCat(terminal_.paint("in the loss", "32"), ", ",
                                                    terminal_.paint("not in the loss", "90"))
                                     : "{+in the loss+}, not in the loss")
                << '\n';
}

void DataPrinter::print_row(const v1::InspectedRow& row) const {
  int64_t tokens = 0, labels = 0;
  for (const auto& document : row.documents()) {
    tokens += document.ids_size();
    labels += num_labels(document);
  }
  terminal_.out << '\n'
                << terminal_.paint(absl::StrCat("row ", row.index(), ": ",
                                                counted(row.documents_size(), "document"), ", ",
                                                token_counts(tokens, labels)),
                                   "1")
                << '\n';
  for (int i = 0; i < row.documents_size(); ++i) {
    const std::string& role = row.documents(i).role();
    print_document(role.empty() ? absl::StrCat("document ", i) : role, row.documents(i));
  }
  if (row.has_mismatched()) print_document("with another completion", row.mismatched());
}

void DataPrinter::print_document(const std::string& name,
                                 const v1::InspectedDocument& document) const {
  terminal_.out << terminal_.paint(
                       absl::StrCat("--- ", name, ": ",
                                    token_counts(document.ids_size(), num_labels(document)),
                                    document.has_margin()
                                        ? absl::StrCat(", margin ", document.margin())
                                        : ""),
                       "36")
                << '\n'
                << (terminal_.colour ? coloured(document) : marked(document)) << '\n';
}

std::string DataPrinter::coloured(const v1::InspectedDocument& document) const {
  std::string text;
  for (int i = 0; i < document.texts_size(); ++i) {
    const auto& colours = document.labels(i) ? kLabelColours : kOtherColours;
    if (document.texts(i).empty()) continue;
    absl::StrAppend(&text, terminal_.paint(without_controls(document.texts(i)), colours[i % 2]));
  }
  return text;
}

std::string DataPrinter::marked(const v1::InspectedDocument& document) {
  std::string text;
  bool is_open = false;
  for (int i = 0; i < document.texts_size(); ++i) {
    if (document.labels(i) != is_open) text += is_open ? "+}" : "{+";
    is_open = document.labels(i);
    text += without_controls(document.texts(i));
  }
  return is_open ? text + "+}" : text;
}

}  // namespace tessera::cli
