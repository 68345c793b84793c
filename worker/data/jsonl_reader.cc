#include <simdjson.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "worker/data/file_descriptor.h"
#include "worker/data/record_reader.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// Its depth is the parser's, which has a limit.
ordered_json to_json(simdjson::dom::element element) {
  using Type = simdjson::dom::element_type;
  switch (element.type()) {
    case Type::OBJECT: {
      ordered_json object = ordered_json::object();
      for (const auto [key, value] : simdjson::dom::object(element)) {
        object[std::string(key)] = to_json(value);
      }
      return object;
    }
    case Type::ARRAY: {
      ordered_json list = ordered_json::array();
      for (const auto value : simdjson::dom::array(element)) list.push_back(to_json(value));
      return list;
    }
    case Type::STRING:
      return std::string(std::string_view(element));
    case Type::INT64:
      return int64_t(element);
    case Type::UINT64:
      return uint64_t(element);
    case Type::DOUBLE:
      return double(element);
    case Type::BOOL:
      return bool(element);
    default:
      return nullptr;
  }
}

class JsonlRecord final : public Record {
 public:
  explicit JsonlRecord(const RecordFile& file) : file_(file) {}

  // `line` has SIMDJSON_PADDING readable bytes after it.
  void parse(std::string_view line, int64_t number) {
    number_ = number;
    simdjson::dom::element root;
    if (const auto error = parser_.parse(line.data(), line.size(), false).get(root)) {
      fail(std::string("not valid JSON: ") + simdjson::error_message(error));
    }
    if (root.get(object_)) fail("not a JSON object");
  }

  bool has(std::string_view field) const override {
    simdjson::dom::element member;
    return !object_.at_key(field).get(member) && !member.is_null();
  }

  bool is_string(std::string_view field) const override {
    simdjson::dom::element member;
    return !object_.at_key(field).get(member) && member.is_string();
  }

  std::string_view string(std::string_view field) const override {
    std::string_view value;
    if (member(field).get(value)) {
      fail("the field \"" + std::string(field) + "\" is not a string");
    }
    return value;
  }

  ordered_json json(std::string_view field) const override { return to_json(member(field)); }

  ordered_json object() const override {
    ordered_json all = ordered_json::object();
    for (const auto [key, value] : object_) {
      if (!value.is_null()) all[std::string(key)] = to_json(value);
    }
    return all;
  }

  std::string place() const override { return file_.path.string() + ":" + std::to_string(number_); }

  [[noreturn]] void fail(const std::string& problem) const override {
    throw UserError(file_.field, place() + ": " + problem);
  }

 private:
  simdjson::dom::element member(std::string_view field) const {
    simdjson::dom::element found;
    if (object_.at_key(field).get(found)) {
      fail("there is no field \"" + std::string(field) + "\"");
    }
    return found;
  }

  const RecordFile& file_;
  simdjson::dom::parser parser_;
  simdjson::dom::object object_;
  int64_t number_ = 0;
};

class JsonlBlock final : public RecordBlock {
 public:
  // Whole lines, of which the first has the given number.
  JsonlBlock(RecordFile file, std::string lines, int64_t first_number)
      : file_(std::move(file)),
        buffer_(std::move(lines)),
        size_(buffer_.size()),
        number_(first_number),
        record_(file_) {
    buffer_.append(simdjson::SIMDJSON_PADDING, ' ');
  }

  const Record* next() override {
    while (at_ < size_) {
      const std::string_view rest = std::string_view(buffer_).substr(at_, size_ - at_);
      const std::string_view line = rest.substr(0, rest.find('\n'));
      at_ += line.size() + 1;
      const int64_t number = number_++;
      if (is_blank(line)) continue;
      record_.parse(line, number);
      return &record_;
    }
    return nullptr;
  }

 private:
  const RecordFile file_;
  std::string buffer_;
  const size_t size_;
  size_t at_ = 0;
  int64_t number_;
  JsonlRecord record_;
};

class JsonlReader final : public RecordReader {
 public:
  explicit JsonlReader(const RecordFile& file)
      : file_(file), opened_(open_regular_file(file.path, file.field)) {
    std::string begin(kByteOrderMark.size(), '\0');
    begin.resize(read_at(opened_.get(), begin.data(), begin.size(), 0));
    if (begin == kByteOrderMark) offset_ = static_cast<int64_t>(begin.size());
  }

  std::unique_ptr<RecordBlock> next_block() override {
    std::string lines = std::move(begun_line_);
    begun_line_.clear();
    while (true) {
      const size_t searched = lines.size();  // there is no line break before
      if (!read_more(lines)) break;
      const size_t end = std::string_view(lines).substr(searched).rfind('\n');
      if (end == std::string_view::npos) {
        if (lines.size() > kMaxLineBytes) {
          throw UserError(file_.field, file_.path.string() + ":" + std::to_string(next_number_) +
                                           ": the line is longer than " +
                                           std::to_string(kMaxLineBytes) + " bytes");
        }
        continue;
      }
      begun_line_ = lines.substr(searched + end + 1);
      lines.resize(searched + end + 1);
      break;
    }
    if (lines.empty()) return nullptr;
    const int64_t first_number = next_number_;
    next_number_ += std::count(lines.begin(), lines.end(), '\n');
    return std::make_unique<JsonlBlock>(file_, std::move(lines), first_number);
  }

 private:
  bool read_more(std::string& lines) {
    const size_t size = lines.size();
    lines.resize(size + kRecordBlockBytes);
    const size_t count = read_at(opened_.get(), lines.data() + size, kRecordBlockBytes, offset_);
    lines.resize(size + count);
    offset_ += static_cast<int64_t>(count);
    return count > 0;
  }

  const RecordFile file_;
  const FileDescriptor opened_;
  int64_t offset_ = 0;
  int64_t next_number_ = 1;
  std::string begun_line_;
};

}  // namespace

std::unique_ptr<RecordReader> open_jsonl(const RecordFile& file) {
  return std::make_unique<JsonlReader>(file);
}

}  // namespace tessera
