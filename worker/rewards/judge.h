// What judges completions, and needs no model for it: the rules of reward_funcs, and servers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/v1/job.pb.h"

namespace tessera {

// A completion to be judged.
struct JudgedCompletion {
  std::string prompt;      // text as the model was given it, special tokens included
  std::string completion;  // text without special tokens
  std::span<const int32_t> prompt_ids, completion_ids;
  bool truncated = false;
  std::string_view record;  // the prompt's record, a JSON object
};

// All judges of a job that need no model. Not thread safe; callbacks are called on the thread that
// judges.
class Judges {
 public:
  struct Context {
    std::string job_id;
    // One sentence on the servers that are waited for, when that begins and when it changes; empty:
    // it goes on.
    std::function<void(const std::string& reason)> on_waiting = [](auto&) {};
    // At least once a second while judge() lasts.
    std::function<void()> alive = [] {};
  };

  // Spec with defaults filled in. Reads schemas and compiles patterns; servers are not asked before
  // there is something to judge. `program` is the tessera-rewards that asks them; empty: the one
  // beside this program. Throws UserError naming reward_funcs[i].
  Judges(const v1::JobSpec& spec, Context context, const std::filesystem::path& program = {});
  ~Judges();
  Judges(const Judges&) = delete;
  Judges& operator=(const Judges&) = delete;

  // float [num_completions][num reward_funcs] row-major; NaN: cannot be judged, or it is a
  // reward_funcs[i].model, which is not judged here. `step`: steps the job has taken.
  // Waits for servers that cannot be reached or fail as long as max_wait_seconds allow. Throws
  // UserError: a server refused, gave what are no scores, or was waited for too long.
  std::vector<float> judge(std::span<const JudgedCompletion> completions, int32_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Throws as Judges does, of reward_funcs[index] alone.
void check_judge(const v1::JobSpec& spec, int index, const std::filesystem::path& program = {});

}  // namespace tessera
