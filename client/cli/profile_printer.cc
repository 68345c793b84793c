#include "client/cli/profile_printer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/format.h"

namespace tessera::cli {
namespace {

constexpr size_t kMinWidth = 60;
constexpr size_t kMaxWidth = 100;
constexpr int kMaxBins = 24;
// "  1024 - 1535 " in front of a bar, "  12.3%  45.6%" behind it.
constexpr size_t kBarMargin = 38;
constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// What is not nothing is not shown as 0.0%.
std::string percent(int64_t part, int64_t whole) {
  const double value = 100 * share(part, whole);
  if (part != 0 && value < 0.05) return "<0.1%";
  if (part != whole && value >= 99.95) return ">99.9%";
  return absl::StrFormat("%.1f%%", value);
}

std::string bar(double value, size_t width) {
  const auto eighths = static_cast<size_t>(std::lround(value * static_cast<double>(width) * 8));
  std::string text;
  for (size_t i = 0; i < eighths / 8; ++i) text += "█";
  return text + (eighths == 0 && value > 0 ? kEighths[1] : kEighths[eighths % 8]);
}

struct Bin {
  int64_t begin, end, num_documents, num_tokens;
};

// At most kMaxBins: the shortest documents share the first.
std::vector<Bin> bins_of(const v1::DataProfile& profile) {
  std::vector<Bin> bins;
  const int extra = std::max(0, profile.bins_size() - kMaxBins);
  for (int i = 0; i < profile.bins_size(); ++i) {
    const v1::LengthBin& bin = profile.bins(i);
    if (i > 0 && i <= extra) {
      bins[0].end = bin.end();
      bins[0].num_documents += bin.num_documents();
      bins[0].num_tokens += bin.num_tokens();
    } else {
      bins.push_back({bin.begin(), bin.end(), bin.num_documents(), bin.num_tokens()});
    }
  }
  return bins;
}

void print_histogram(const Terminal& terminal, const v1::DataProfile& profile, size_t width) {
  const std::vector<Bin> bins = bins_of(profile);
  int64_t largest = 1;
  for (const Bin& bin : bins) largest = std::max(largest, bin.num_documents);
  const size_t bar_width = width - kBarMargin;
  terminal.out << absl::StrFormat("%17s  %s  %s\n", "TOKENS",
                                  "DOCUMENTS" + std::string(bar_width - 9, ' '),
                                  "  SHARE   TOKENS");
  for (const Bin& bin : bins) {
    const std::string filled = bar(share(bin.num_documents, largest), bar_width);
    // A bar's characters take three bytes and one column each.
    const size_t columns = filled.size() / 3;
    terminal.out << absl::StrFormat("%8d - %6d  ", bin.begin, bin.end - 1)
                 << terminal.paint(filled, "36") << std::string(bar_width - columns, ' ')
                 << absl::StrFormat("  %7s  %7s\n",
                                    percent(bin.num_documents, profile.num_documents()),
                                    percent(bin.num_tokens, profile.num_tokens()));
  }
}

std::string quantile_name(double share) {
  if (share == 0) return "min";
  if (share == 0.5) return "median";
  if (share == 1) return "max";
  return absl::StrFormat("p%g", 100 * share);
}

void print_quantiles(const Terminal& terminal, const v1::DataProfile& profile) {
  std::vector<std::vector<std::string>> rows(2);
  for (const v1::LengthQuantile& quantile : profile.quantiles()) {
    rows[0].push_back(">" + quantile_name(quantile.share()));
    rows[1].push_back(absl::StrCat(quantile.num_tokens()));
  }
  rows[0].push_back(">mean");
  rows[1].push_back(absl::StrFormat("%.1f", profile.mean_tokens()));
  for (const std::string& line : format_table(std::move(rows))) terminal.out << line << '\n';
}

std::string length_cell(const v1::DataProfile& profile, const v1::LengthChoice& choice) {
  const bool is_advised = choice.max_length() == profile.advice().max_length();
  return absl::StrCat(is_advised ? "* " : "", choice.max_length());
}

void print_choices(const Terminal& terminal, const v1::DataProfile& profile) {
  const bool packs = !profile.choices().empty() && !profile.choices(0).packed().empty();
  std::vector<std::vector<std::string>> rows{{">MAX_LENGTH", ">CUT OFF", ">DOCS CUT", ">PADDING"}};
  if (packs)
    rows[0].insert(rows[0].end(), {">BFD", ">BFD_SPLIT", ">WRAPPED", ">ROWS"});
  else
    rows[0].push_back(">LEFT OUT");
  bool has_jobs = false;
  for (const v1::LengthChoice& choice : profile.choices()) {
    const int64_t kept = profile.num_tokens() - choice.num_truncated_tokens();
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(length_cell(profile, choice));
    row.push_back(percent(choice.num_truncated_tokens(), profile.num_tokens()));
    row.push_back(percent(choice.num_truncated_documents(), profile.num_documents()));
    row.push_back(percent(choice.num_padding_tokens(), kept + choice.num_padding_tokens()));
    for (const v1::PackedRows& packed : choice.packed()) {
      row.push_back(percent(packed.num_tokens(), packed.num_rows() * choice.max_length()));
    }
    row.push_back(absl::StrCat(packs ? choice.packed(0).num_rows() : choice.num_lost_documents()));
    if (choice.is_of_job()) row.front() += "'";
    has_jobs |= choice.is_of_job();
  }
  const std::vector<std::string> lines = format_table(std::move(rows));
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool is_advised = i > 0 && profile.choices(static_cast<int>(i) - 1).max_length() ==
                                         profile.advice().max_length();
    terminal.out << (is_advised ? terminal.paint(lines[i], "32") : lines[i]) << '\n';
  }
  terminal.out << "CUT OFF: tokens lost to truncation. PADDING: of a padded batch of "
               << profile.batch_rows() << ", in random order.\n"
               << (packs ? "BFD ...: how full packed rows are. ROWS: of bfd."
                         : "LEFT OUT: documents whose rows would be left out.")
               << (has_jobs ? " ': the job's." : "") << '\n';
}

// Words to lines of at most `width` columns.
void print_wrapped(const Terminal& terminal, const std::string& text, size_t width,
                   const std::string& indent) {
  std::string line = indent;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (line.size() > indent.size() && line.size() + 1 + word.size() > width) {
      terminal.out << line << '\n';
      line = indent;
    }
    absl::StrAppend(&line, line.size() > indent.size() ? " " : "", word);
  }
  terminal.out << line << '\n';
}

void print_advice(const Terminal& terminal, const v1::DataProfile& profile, size_t width) {
  const v1::LengthAdvice& advice = profile.advice();
  const bool packs = !profile.choices(0).packed().empty();
  const std::string packing =
      !packs ? ""
      : advice.packing_strategy() == "none"
          ? ", packing: false"
          : ", packing: true, packing_strategy: " + advice.packing_strategy();
  terminal.out << terminal.paint(absl::StrCat("max_length: ", advice.max_length(), packing), "1;32")
               << '\n';
  for (const std::string& reason : advice.reasons()) print_wrapped(terminal, reason, width, "  ");
}

}  // namespace

void print_profile(const Terminal& terminal, const v1::DataProfile& profile) {
  const size_t width = std::clamp(terminal.width, kMinWidth, kMaxWidth);
  terminal.out << profile.num_documents() << " documents, " << profile.num_tokens() << " tokens"
               << (profile.max_documents() > 0 ? absl::StrCat("; of each source at most ",
                                                              profile.max_documents(), " are read")
                                               : "")
               << "\n\n";
  if (profile.num_tokens() == 0) return;
  print_histogram(terminal, profile, width);
  terminal.out << '\n';
  print_quantiles(terminal, profile);
  terminal.out << '\n';
  print_choices(terminal, profile);
  terminal.out << '\n';
  print_advice(terminal, profile, width);
  terminal.out.flush();
}

}  // namespace tessera::cli
