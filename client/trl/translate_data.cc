// Data sets and rewards.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/trl/datasets.h"
#include "client/trl/translate.h"
#include "client/trl/values.h"

namespace tessera::trl {
namespace {

using Kind = YamlNode::Kind;

// Builders of the datasets library that only say how files are read.
bool is_builder(const std::string& path) {
  return path == "json" || path == "parquet" || path == "jsonl";
}

bool is_number(const YamlNode& node) {
  double value = 0;
  return node.kind == Kind::kScalar && absl::SimpleAtod(node.scalar, &value);
}

bool is_dotted_name(const std::string& text) {
  return std::ranges::all_of(text,
                             [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_'; });
}

std::vector<std::string> quoted(const std::vector<std::string>& files) {
  std::vector<std::string> texts;
  for (const std::string& file : files) texts.push_back(yaml_text(file));
  return texts;
}

}  // namespace

void Translator::dataset_field(const YamlEntry& entry) {
  if (is_nothing(entry.value)) return note(entry, "the same as without it");
  if (entry.value.kind != Kind::kScalar) return refuse(entry, "it must be a text");
  const std::string& value = entry.value.scalar;
  if (entry.key == "dataset_name") {
    dataset_.path = value;
    dataset_.mark = entry.mark;
  } else if (entry.key == "dataset_config") {
    dataset_.name = value;
  } else if (entry.key == "dataset_train_split") {
    train_split_ = value;
  } else {
    test_split_ = value;
    note(entry, "held-out documents are read where eval_strategy says when");
  }
}

void Translator::datasets(const YamlEntry& entry) {
  if (entry.value.kind != Kind::kList) return refuse(entry, "it must be a list of data sets");
  for (const YamlNode& item : entry.value.items) {
    Source source{
        .path = "", .mark = item.mark, .files = {}, .name = "", .split = "train", .fraction = ""};
    std::string data_dir;
    for (const YamlEntry& inner : item.entries) {
      const YamlEntry named = within(entry, inner);
      const auto texts = as_texts(inner.value);
      if (is_nothing(inner.value)) continue;
      if (inner.key == "path") {
        source.path = inner.value.scalar;
      } else if (inner.key == "name") {
        source.name = inner.value.scalar;
      } else if (inner.key == "data_dir") {
        data_dir = inner.value.scalar;
      } else if (inner.key == "data_files" && texts) {
        source.files = *texts;
      } else if (inner.key == "split") {
        source.split = inner.value.scalar;
      } else if (inner.key == "fraction" && is_number(inner.value)) {
        source.fraction = inner.value.scalar;
      } else if (inner.key == "columns") {
        note(named, "only the columns of the format are read; rewards see them all");
      } else {
        refuse(named,
               "it must be one of path, name, data_dir, data_files (a list), split, columns "
               "and fraction");
      }
    }
    if (!data_dir.empty())
      source.path = is_builder(source.path) ? data_dir : source.path + "/" + data_dir;
    sources_.push_back(source);
  }
}

std::vector<std::string> Translator::absolute(const std::vector<std::string>& names) const {
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    paths.push_back(local_path(name, options_.directory).string());
  }
  return paths;
}

std::vector<std::string> Translator::files_of(const Source& source, const std::string& split) {
  if (!source.files.empty() && source.name.empty() && split == "train") {
    return absolute(source.files);
  }
  if (!source.files.empty()) {
    draft_.refuse(source.mark,
                  absl::StrCat("data_files with ",
                               source.name.empty() ? absl::StrCat("the split ", split)
                                                   : absl::StrCat("name ", source.name),
                               " are not known here; write what is meant to a file, "
                               "and give --train FILE"));
    return {};
  }
  const bool is_here = is_local(source.path, options_.directory) && !source.path.starts_with('~');
  if (is_here && source.name.empty()) {
    SplitFiles found = find_split(local_path(source.path, options_.directory), split);
    if (found.error.empty()) return found.paths;
    const char* flag = split == test_split_ && split != train_split_ ? "--eval" : "--train";
    draft_.refuse(source.mark, absl::StrCat(found.error, "; give ", flag, " FILE"));
    return {};
  }
  if (is_here) {
    draft_.refuse(source.mark, absl::StrCat("the configuration ", source.name, " of ", source.path,
                                            " is not known here; give --train FILE"));
    return {};
  }
  const bool held_out = split == test_split_ && split != train_split_;
  draft_.refuse(source.mark,
                absl::StrCat(source.path, " is no file or directory here: nothing is downloaded. ",
                             how_to_export(source.path, source.name, split, split + ".jsonl"),
                             ", and give ", held_out ? "--eval " : "--train ", split, ".jsonl"));
  return {};
}

void Translator::set_files(const char* field, const std::vector<std::string>& files) {
  if (!files.empty()) draft_.set(field, yaml_list(quoted(files)));
}

void Translator::finish_sources() {
  const bool weighed =
      std::ranges::any_of(sources_, [](const Source& source) { return !source.fraction.empty(); });
  std::vector<std::string> all;
  std::string mixture;
  for (const Source& source : sources_) {
    const std::vector<std::string> files = files_of(source, source.split);
    all.insert(all.end(), files.begin(), files.end());
    if (!files.empty()) {
      absl::StrAppend(&mixture, "\n    - { path: ", yaml_list(quoted(files)),
                      ", weight: ", source.fraction.empty() ? "1" : source.fraction, " }");
    }
  }
  if (!weighed) return set_files("data.train", all);
  draft_.set("data.mixture", mixture,
             {"TRL takes the first rows of each in these shares; here documents are drawn from",
              "each in these shares, until the first has no more."});
}

void Translator::finish_data() {
  if (!options_.train.empty()) {
    set_files("data.train", absolute(options_.train));
    draft_.note(absl::StrCat("dataset_name: ", dataset_.path.empty() ? "none" : dataset_.path),
                "--train is given");
  } else if (!sources_.empty()) {
    finish_sources();
  } else if (!dataset_.path.empty()) {
    set_files("data.train", files_of(dataset_, train_split_));
  } else {
    draft_.refuse({}, "dataset_name is missing; give --train FILE");
  }
}

// TRL looks at held-out documents only where eval_strategy says when.
void Translator::finish_eval() {
  const std::string strategy = draft_.value("training.eval_strategy");
  const bool evaluates = !strategy.empty() && strategy != "no" && strategy != "\"no\"";
  if (!options_.eval.empty()) return set_files("data.eval", absolute(options_.eval));
  if (!evaluates) return;
  if (!sources_.empty() || dataset_.path.empty()) {
    return draft_.refuse({}, "eval_strategy asks for held-out documents; give --eval FILE");
  }
  set_files("data.eval", files_of(dataset_, test_split_));
}

void Translator::reward_model(const YamlEntry& entry) {
  if (is_nothing(entry.value)) return note(entry, "the same as without it");
  const std::string& path = entry.value.scalar;
  if (!is_local(path, options_.directory) || path.starts_with('~')) {
    return refuse(entry, absl::StrCat("no directory here: nothing is downloaded. `hf download ",
                                      path, " --local-dir DIR`, and name DIR"));
  }
  // The model is the first judge, as in TRL.
  rewards_.insert(rewards_.begin(),
                  absl::StrCat("\n  - { name: reward_model, model: { path: ",
                               yaml_text(local_path(path, options_.directory).string()), " } }"));
  draft_.set("reward_funcs", absl::StrJoin(rewards_, ""));
}

void Translator::reward_funcs(const YamlEntry& entry) {
  const auto names = as_texts(entry.value);
  if (is_nothing(entry.value)) return note(entry, "the same as without it");
  if (!names) return refuse(entry, "it must be a list of names");
  for (const std::string& name : *names) add_reward(entry, name);
  if (!rewards_.empty()) draft_.set("reward_funcs", absl::StrJoin(rewards_, ""));
}

void Translator::add_reward(const YamlEntry& entry, const std::string& function) {
  if (function == "think_format_reward") {
    rewards_.push_back("\n  - { name: think_format_reward, format: { tags: [think] } }");
  } else if (function == "get_soft_overlong_punishment") {
    rewards_.push_back(
        "\n  - { name: soft_overlong_punishment, "
        "length: { max_tokens: 1280, soft_punish_cache: 256 } }");
  } else if (!options_.reward_server.empty() && is_dotted_name(function)) {
    rewards_.push_back(absl::StrCat(
        "\n  # Serve the Python function ", function, " under this name: docs/rewards.md.",
        "\n  - { name: ", yaml_text(function.substr(function.rfind('.') + 1)),
        ", server: { address: ", yaml_text(options_.reward_server), " } }"));
  } else {
    draft_.refuse(entry.value.mark,
                  absl::StrCat("reward_funcs holds ", function,
                               ", a Python function: serve it with tessera.rewards "
                               "(docs/rewards.md), and give --reward-server HOST:PORT"));
  }
}

}  // namespace tessera::trl
