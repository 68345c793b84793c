// The keys of a TRL file, one by one, into a draft of a job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cpp/yaml_tree.h"
#include "client/trl/import.h"
#include "client/trl/job_draft.h"
#include "client/trl/keys.h"
#include "client/trl/launch.h"

namespace tessera::trl {

class Translator {
 public:
  Translator(const ImportOptions& options, Method method, JobDraft& draft, Launch& launch);

  // All keys, in the order of the file, then what depends on several of them.
  void translate(const YamlNode& root);
  // What depends on accelerate's file, too; call it after Launch::apply.
  void finish();

 private:
  using Handler = void (Translator::*)(const YamlEntry&);
  struct Special {
    const char* name;
    Handler handler;
  };
  static const std::vector<Special>& specials();

  // A list of data sets, or the one of the Hub's name.
  struct Source {
    std::string path;
    Mark mark;
    std::vector<std::string> files;
    std::string name;
    std::string split;
    std::string fraction;
  };

  void take(const YamlEntry& entry);
  void copy(const YamlEntry& entry, const Key& key);
  std::string target(const char* path) const;
  // "KEY is VALUE: WHY".
  void refuse(const YamlEntry& entry, const std::string& why);
  void note(const YamlEntry& entry, const std::string& why);
  void copy_to(const YamlEntry& entry, const std::string& path);
  // `inner`, an entry of the section `entry`, by its whole name.
  static YamlEntry within(const YamlEntry& entry, const YamlEntry& inner);
  // The section that `entry` holds; refuses what is none. Null: nothing is in it.
  YamlNode section_of(const YamlEntry& entry);

  // Training.
  void output_dir(const YamlEntry& entry);
  void run_name(const YamlEntry& entry);
  void scheduler(const YamlEntry& entry);
  void optim(const YamlEntry& entry);
  void bf16(const YamlEntry& entry);
  void checkpointing(const YamlEntry& entry);
  void checkpointing_kwargs(const YamlEntry& entry);
  void report_to(const YamlEntry& entry);
  void resume(const YamlEntry& entry);
  void ddp_timeout(const YamlEntry& entry);
  void environment(const YamlEntry& entry);

  // Launching.
  void use_cpu(const YamlEntry& entry);
  void accelerator(const YamlEntry& entry);
  void parallelism(const YamlEntry& entry);
  void fsdp(const YamlEntry& entry);
  void fsdp_config(const YamlEntry& entry);
  void accelerate_preset(const YamlEntry& entry);

  // Model, adapters, methods.
  void model(const YamlEntry& entry);
  void dtype(const YamlEntry& entry);
  void model_kwargs(const YamlEntry& entry);
  void peft(const YamlEntry& entry);
  void quantization(const YamlEntry& entry);
  void max_length(const YamlEntry& entry);
  void dataset_kwargs(const YamlEntry& entry);
  void generation_kwargs(const YamlEntry& entry);
  void gather(const YamlEntry& entry);
  void scale_rewards(const YamlEntry& entry);

  // Data and rewards.
  void dataset_field(const YamlEntry& entry);
  void datasets(const YamlEntry& entry);
  void reward_model(const YamlEntry& entry);
  void reward_funcs(const YamlEntry& entry);
  void add_reward(const YamlEntry& entry, const std::string& function);

  void finish_model();
  void finish_data();
  void finish_eval();
  void finish_sources();
  // Empty where it cannot be had; it was refused then.
  std::vector<std::string> files_of(const Source& source, const std::string& split);
  std::vector<std::string> absolute(const std::vector<std::string>& names) const;
  void set_files(const char* field, const std::vector<std::string>& files);

  const ImportOptions& options_;
  const Method method_;
  JobDraft& draft_;
  Launch& launch_;

  std::optional<bool> bf16_;
  std::string dtype_;
  bool has_peft_ = false;
  // activation_checkpointing, the newer name, was given.
  bool has_activation_checkpointing_ = false;
  // Given, but without effect unless use_peft.
  std::vector<YamlEntry> of_peft_;
  Mark model_mark_;
  std::string model_;
  Source dataset_;
  std::string train_split_ = "train";
  std::string test_split_ = "test";
  std::vector<Source> sources_;
  std::vector<std::string> rewards_;
};

}  // namespace tessera::trl
