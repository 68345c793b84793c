// accelerate's side of an import: ranks, the mesh, sharding and precision.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "client/cpp/yaml_tree.h"
#include "client/trl/job_draft.h"

namespace tessera::trl {

class Launch {
 public:
  explicit Launch(JobDraft& draft) : draft_(draft) {}

  // Takes accelerate's whole file.
  void add_file(const YamlNode& root);
  // One key of it, or of one of its sections; sections themselves, too. A later one replaces an
  // earlier. False: there is no such key.
  bool add(const YamlEntry& entry);
  // A section of FSDP, in which "fsdp_" in front of names may be missing.
  void add_fsdp(const YamlNode& section);
  // As for FSDP, with "parallelism_config_".
  void add_parallelism(const YamlNode& section);

  // Sets parallelism, memory and resources, once all has been added. `max_grad_norm` as the draft
  // has it is what DeepSpeed's clipping is compared with.
  void apply();

  // "bf16", "fp16", "fp8", "no"; empty: not said.
  std::string mixed_precision() { return text("mixed_precision"); }

 private:
  struct Value {
    YamlNode node;
    Mark mark;
    std::string file;
  };

  void add_section(const YamlNode& section, const std::string& prefix);
  // In lower case; empty: it is not given.
  std::string text(const std::string& key);
  bool is_true(const std::string& key);
  // At least 1. `otherwise` where it is not given.
  int count(const std::string& key, int otherwise);
  void refuse(const std::string& key, const std::string& why);

  // "no", "ddp", "fsdp", "deepspeed", "cpu".
  std::string strategy();
  void apply_fsdp();
  void apply_deepspeed();
  void apply_offload(const std::string& key, const std::string& field);
  void apply_mesh(const std::string& strategy);
  void apply_context();
  void apply_device();
  void note_unused();

  JobDraft& draft_;
  std::map<std::string, Value> values_;
  // Keys that have been asked for: the others are without effect.
  std::set<std::string> used_;
  // Ranks that hold whole copies: set by the strategies, for the mesh.
  bool replicates_ = false;
  bool is_hybrid_ = false;
};

}  // namespace tessera::trl
