#include "worker/data/jsonl.h"

#include <algorithm>

#include "worker/errors.h"

namespace tessera {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

JsonlFile::JsonlFile(std::filesystem::path path, std::string field, int64_t max_lines)
    : path_(std::move(path)), field_(std::move(field)), file_(path_, field_) {
  std::string_view rest = file_.contents();
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  for (int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view text = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    if (is_blank(text)) continue;
    const Line line{number, text};
    if (text.size() > kMaxLineBytes) {
      fail(line, "the line is longer than " + std::to_string(kMaxLineBytes) + " bytes");
    }
    lines_.push_back(line);
    if (static_cast<int64_t>(lines_.size()) == max_lines) break;
  }
}

void JsonlFile::fail(const Line& line, const std::string& problem) const {
  throw UserError(field_, path_.string() + ":" + std::to_string(line.number) + ": " + problem);
}

void JsonlFile::fail(const std::string& problem) const {
  throw UserError(field_, path_.string() + ": " + problem);
}

std::string_view JsonlParser::string(const JsonlFile::Line& line, std::string_view key) {
  padded_.assign(line.text);
  padded_.append(simdjson::SIMDJSON_PADDING, ' ');
  simdjson::dom::element root;
  if (const auto error = parser_.parse(padded_.data(), line.text.size(), false).get(root)) {
    file_.fail(line, std::string("not valid JSON: ") + simdjson::error_message(error));
  }
  simdjson::dom::object object;
  if (root.get(object)) file_.fail(line, "not a JSON object");
  simdjson::dom::element member;
  if (object.at_key(key).get(member)) {
    file_.fail(line, "there is no field \"" + std::string(key) + "\"");
  }
  std::string_view value;
  if (member.get(value)) {
    file_.fail(line, "the field \"" + std::string(key) + "\" is not a string");
  }
  return value;
}

}  // namespace tessera
