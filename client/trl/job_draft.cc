#include "client/trl/job_draft.h"

#include <algorithm>

#include <google/protobuf/stubs/logging.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tessera/v1/job.pb.h"

namespace tessera::trl {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

bool is_plain(const std::string& text) {
  constexpr const char* kWords[] = {"null", "~", "true", "false", "yes", "no", "on", "off"};
  if (text.empty() || text[0] == '-' || text[0] == '.') return false;
  if (std::ranges::find(kWords, absl::AsciiStrToLower(text)) != std::end(kWords)) return false;
  return std::ranges::all_of(text, [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '/' || c == '.' || c == '-';
  });
}

// A comment ends with its line: what a file brought in must not begin another one.
std::string one_line(std::string text) {
  std::ranges::replace_if(text, [](char c) { return absl::ascii_iscntrl(c); }, ' ');
  return text;
}

std::string indent_of(const std::string& path) {
  return std::string(2 * static_cast<size_t>(std::ranges::count(path, '.')), ' ');
}

}  // namespace

std::string yaml_text(const std::string& text) {
  if (is_plain(text)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\x%02x", c);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string yaml_list(const std::vector<std::string>& entries) {
  if (entries.size() == 1) return entries[0];
  return absl::StrCat("[", absl::StrJoin(entries, ", "), "]");
}

const FieldDescriptor* job_field(const std::string& path) {
  const Descriptor* message = v1::JobSpec::descriptor();
  const FieldDescriptor* field = nullptr;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(path, '.'))) {
    field = message == nullptr ? nullptr : message->FindFieldByName(name);
    if (field == nullptr) return nullptr;
    message = field->message_type();
  }
  return field;
}

void JobDraft::set(const std::string& path, const std::string& value,
                   const std::vector<std::string>& comment) {
  GOOGLE_CHECK(job_field(path) != nullptr) << path;
  fields_[path] = {value, comment};
}

std::string JobDraft::value(const std::string& path) const {
  const auto it = fields_.find(path);
  return it == fields_.end() ? "" : it->second.value;
}

void JobDraft::refuse(Mark mark, const std::string& sentence) {
  refusals_.push_back(mark.line == 0
                          ? absl::StrCat(file_, ": ", sentence)
                          : absl::StrCat(file_, ":", mark.line, ":", mark.column, ": ", sentence));
}

bool JobDraft::has_below(const std::string& path) const {
  const auto it = fields_.lower_bound(path + ".");
  return it != fields_.end() && it->first.starts_with(path + ".");
}

void JobDraft::render_section(const Descriptor& message, const std::string& path,
                              std::string& out) const {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string inner = path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
    const std::string indent = indent_of(inner);
    const auto it = fields_.find(inner);
    if (it != fields_.end()) {
      for (const std::string& line : it->second.comment) {
        absl::StrAppend(&out, indent, "# ", one_line(line), "\n");
      }
    }
    if (has_below(inner)) {
      absl::StrAppend(&out, indent, field.name(), ":\n");
      render_section(*field.message_type(), inner, out);
    } else if (it != fields_.end()) {
      const bool is_block = it->second.value.starts_with('\n');
      absl::StrAppend(&out, indent, field.name(), is_block ? ":" : ": ", it->second.value, "\n");
    }
  }
}

std::string JobDraft::render(const std::vector<std::string>& head) const {
  std::string out;
  for (const std::string& line : head) absl::StrAppend(&out, "# ", one_line(line), "\n");
  if (!notes_.empty()) out += "#\n# Without a field of their own:\n";
  for (const Note& note : notes_)
    absl::StrAppend(&out, "#   ", one_line(note.what), " (", note.why, ")\n");
  render_section(*v1::JobSpec::descriptor(), "", out);
  return out;
}

}  // namespace tessera::trl
