// A job file being written: fields with comments, remarks, and what cannot be taken over.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <google/protobuf/descriptor.h>

#include "client/cpp/yaml_tree.h"

namespace tessera::trl {

// `text` as YAML reads it back as the same text.
std::string yaml_text(const std::string& text);
// "[a, b]"; of one entry: that one.
std::string yaml_list(const std::vector<std::string>& entries);

// The field at `path` of a job file ("training.seed"). Null: there is none.
const google::protobuf::FieldDescriptor* job_field(const std::string& path);

class JobDraft {
 public:
  // `file` stands in front of refusals.
  explicit JobDraft(std::string file) : file_(std::move(file)) {}

  // Requires: job_field(path). `value` is YAML: a later one replaces the earlier. "{}" makes a
  // section that may stay empty. `comment`: lines above the field.
  void set(const std::string& path, const std::string& value,
           const std::vector<std::string>& comment = {});
  bool has(const std::string& path) const { return fields_.contains(path); }
  // The YAML of a field; empty: it is not set.
  std::string value(const std::string& path) const;

  // What has no field, because it changes nothing: "KEY: VALUE", and why.
  void note(const std::string& what, const std::string& why) { notes_.push_back({what, why}); }
  // "FILE:LINE:COLUMN: sentence".
  void refuse(Mark mark, const std::string& sentence);
  // From here on places are of another file.
  void go_to_file(const std::string& file) { file_ = file; }
  const std::string& file() const { return file_; }

  const std::vector<std::string>& refusals() const { return refusals_; }
  // The text, fields in the order of job.proto. `head`: lines of its first comment.
  std::string render(const std::vector<std::string>& head) const;

 private:
  struct Field {
    std::string value;
    std::vector<std::string> comment;
  };
  struct Note {
    std::string what;
    std::string why;
  };

  bool has_below(const std::string& path) const;
  void render_section(const google::protobuf::Descriptor& message, const std::string& path,
                      std::string& out) const;

  std::string file_;
  std::map<std::string, Field> fields_;
  std::vector<Note> notes_;
  std::vector<std::string> refusals_;
};

}  // namespace tessera::trl
