#include "client/trl/import.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cpp/job_file.h"
#include "client/trl/job_draft.h"
#include "client/trl/launch.h"
#include "client/trl/translate.h"

namespace tessera::trl {
namespace {

// The method that `options` or its keys say. None: refused.
std::optional<Method> choose_method(const ImportOptions& options, const YamlNode& root,
                                    JobDraft& draft) {
  if (!options.method.empty()) {
    const auto method = find_method(options.method);
    if (!method) {
      draft.refuse({}, absl::StrCat("the method is ", options.method,
                                    ", must be sft, dpo, kto, reward, grpo or rloo"));
    }
    return method;
  }
  const std::vector<Method> possible = methods_of(root);
  if (possible.size() == 1) return possible[0];
  std::vector<std::string> names;
  for (const Method method : possible) names.push_back(method_name(method));
  draft.refuse({}, names.empty()
                       ? "no method has all of these keys; say which it is with --method"
                       : absl::StrCat("these may be the keys of ", absl::StrJoin(names, ", "),
                                      "; say which it is with --method"));
  return std::nullopt;
}

// As transformers names runs: by the directory that they write to.
void name_job(JobDraft& draft, Method method) {
  if (draft.has("name")) return;
  std::string name = std::filesystem::path(draft.value("training.output_dir")).filename().string();
  std::erase_if(name, [](char c) { return c == '"'; });
  std::ranges::replace_if(
      name,
      [](char c) {
        return !std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-';
      },
      '-');
  draft.set("name", yaml_text(name.empty() ? method_name(method) : name.substr(0, 63)));
}

std::vector<std::string> head_of(const ImportOptions& options, Method method) {
  const std::string beside =
      options.accelerate ? absl::StrCat(" and ", options.accelerate->name) : "";
  return {absl::StrCat("Made by `tessera import` of ", options.config.name, " (TRL's ",
                       method_name(method), ")", beside, ".")};
}

YamlNode parse(const ConfigFile& file, JobDraft& draft) {
  draft.go_to_file(file.name);
  try {
    return parse_yaml(file.text);
  } catch (const YamlError& error) {
    draft.refuse(error.mark, error.what());
  }
  return {};
}

}  // namespace

std::vector<Method> methods_of(const YamlNode& root) {
  std::vector<Method> methods;
  for (const MethodName& known : kMethods) {
    const bool has_all = std::ranges::all_of(root.entries, [&](const YamlEntry& entry) {
      return find_key(entry.key, known.method) != nullptr || find_launch_key(entry.key) != nullptr;
    });
    if (has_all) methods.push_back(known.method);
  }
  return methods;
}

Imported import_config(const ImportOptions& options) {
  JobDraft draft(options.config.name);
  Launch launch(draft);
  if (options.accelerate) {
    const YamlNode accelerate = parse(*options.accelerate, draft);
    if (draft.refusals().empty()) launch.add_file(accelerate);
  }
  const size_t before = draft.refusals().size();
  const YamlNode root = parse(options.config, draft);
  if (draft.refusals().size() > before) return {.job_file = "", .errors = draft.refusals()};
  const auto method = choose_method(options, root, draft);
  if (!method) return {.job_file = "", .errors = draft.refusals()};
  Translator translator(options, *method, draft, launch);
  translator.translate(root);
  launch.apply();
  translator.finish();
  name_job(draft, *method);
  if (!draft.refusals().empty()) return {.job_file = "", .errors = draft.refusals()};
  Imported imported{.job_file = draft.render(head_of(options, *method)), .errors = {}};
  imported.errors =
      parse_job_file(imported.job_file, "the job that this makes", options.directory).errors;
  return imported;
}

}  // namespace tessera::trl
