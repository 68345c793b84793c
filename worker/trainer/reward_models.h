// The models among a job's reward_funcs: classifiers with one label, whose score of prompt and
// completion is the reward. They are sharded as the policy is, without its adapters and its
// quantization, and nothing is learnt of them; their bytes are those of references.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/data/reward_text.h"
#include "worker/parallel/mesh.h"
#include "worker/rewards/judge.h"
#include "worker/trainer/frozen.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/score_passes.h"

namespace tessera {

class RewardModels {
 public:
  // Whether the job makes completions that a model judges.
  static bool any(const v1::JobSpec& spec);

  // Not loaded: of the models only config.json is read. The mesh's groups must outlive this. Throws
  // UserError naming reward_funcs[i].model.path.
  RewardModels(const v1::JobSpec& spec, const Mesh& mesh, at::Device device);

  // Reads this rank's shards, and on world rank 0 the tokenizers. Throws UserError likewise.
  void load(const v1::JobSpec& spec);

  // Sets the models' columns of `rewards`, float [completions][num reward_funcs] row-major, which
  // is as large on all ranks: the score of each completion after its prompt; NaN: there is no text
  // to be scored. Collective over the world: each rank scores a share of the completions, whole
  // ones also where ranks share a stream, at most generation.max_num_batched_tokens at a time.
  // `completions`: on world rank 0 all of them, in the order of `rewards`; of others none are read.
  // Its memory is that of the phase kGenerate. `alive` is called before each pass. Throws
  // UserError: a token that the model does not have; as RewardText does.
  void score(std::span<const JudgedCompletion> completions, std::span<float> rewards,
             const std::function<void()>& alive);

  // Allocates what score() does of texts of so many tokens, by model: of as many texts each, and as
  // many models as reward_funcs has. Requires tensors without data.
  void rehearse(std::span<const std::vector<int64_t>> lengths);

 private:
  struct Model {
    int index = 0;  // in reward_funcs
    ModelSource source;
    std::unique_ptr<TrainableModel> model;
    std::unique_ptr<RewardText> text;  // of world rank 0, once it is loaded
  };
  using Texts = std::vector<std::vector<int32_t>>;  // tokens of each; all 0 in a rehearsal

  std::string pack_texts(Model& model, std::span<const JudgedCompletion> completions) const;
  std::vector<float> run_pass(Model& model, const Texts& texts,
                              const std::vector<int64_t>& pass) const;
  std::vector<float> scores_of(Model& model, const Texts& texts,
                               const std::function<void()>& alive) const;

  const Mesh& mesh_;
  const at::Device device_;
  const int64_t num_funcs_;
  const int64_t most_tokens_;  // of a pass
  std::vector<Model> models_;
};

// Throws UserError naming reward_funcs[index].model.path: it is no classifier with one label that
// this engine can run, has no tokenizer, or none that writes conversations where `record` is one:
// that of a prompt, a JSON object; empty: not known. Nothing, where the entry is no model. Reads no
// weights.
void check_reward_model(const v1::JobSpec& spec, int index, const std::string& record);

}  // namespace tessera
