#include "worker/rewards/servers.h"

#include <google/protobuf/util/json_util.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "worker/data/mapped_file.h"
#include "worker/data/utf8.h"
#include "worker/errors.h"
#include "worker/rewards/frames.h"

namespace tessera {
namespace {

// Between two calls of Context::alive.
constexpr int kAliveMs = 500;
// All integers up to here are doubles.
constexpr uint64_t kMostExact = uint64_t{1} << 53;

bool has_wide_integer(const nlohmann::json& value) {
  if (value.is_structured()) return std::ranges::any_of(value, has_wide_integer);
  if (value.is_number_unsigned()) return value.get<uint64_t>() > kMostExact;
  return value.is_number_integer() && value.get<int64_t>() < -static_cast<int64_t>(kMostExact);
}

v1::CompletionToJudge message_of(const JudgedCompletion& completion) {
  v1::CompletionToJudge message;
  message.set_prompt(to_valid_utf8(completion.prompt));
  message.set_completion(to_valid_utf8(completion.completion));
  message.mutable_prompt_ids()->Add(completion.prompt_ids.begin(), completion.prompt_ids.end());
  message.mutable_completion_ids()->Add(completion.completion_ids.begin(),
                                        completion.completion_ids.end());
  message.set_truncated(completion.truncated);
  const auto status = google::protobuf::util::JsonStringToMessage(
      {completion.record.data(), completion.record.size()}, message.mutable_record());
  if (!status.ok()) throw std::invalid_argument("a prompt's record: " + status.ToString());
  if (has_wide_integer(nlohmann::json::parse(completion.record)))
    message.set_record_json(completion.record.data(), completion.record.size());
  return message;
}

bool is_readable(int socket, int timeout_ms) {
  pollfd ready{socket, POLLIN, 0};
  const int count = poll(&ready, 1, timeout_ms);
  if (count < 0 && errno != EINTR)
    throw std::system_error(errno, std::generic_category(), "cannot wait for tessera-rewards");
  return count > 0;
}

}  // namespace

void check_server(const v1::RewardServer& server, int index, const std::filesystem::path& program) {
  const std::string field = "reward_funcs[" + std::to_string(index) + "].server";
  if (access(program.c_str(), X_OK) != 0) {
    throw UserError(field, field + " is given, and " + program.string() +
                               ", which asks servers, is not there: this trainer was built "
                               "without the service");
  }
  if (server.has_ca_file()) MappedFile(server.ca_file(), field + ".ca_file");
}

RewardServers::RewardServers(const v1::JobSpec& spec, const Judges::Context& context,
                             std::filesystem::path program)
    : spec_(spec), context_(context), program_(std::move(program)) {
  for (int i = 0; i < spec.reward_funcs_size(); ++i) {
    if (!spec.reward_funcs(i).has_server()) continue;
    check_server(spec.reward_funcs(i).server(), i, program_);
    indices_.push_back(i);
  }
}

void RewardServers::ask(std::span<const JudgedCompletion> completions, int32_t step) {
  if (!any()) return;
  if (!helper_) helper_ = std::make_unique<RewardHelper>(program_);
  for (const int index : indices_) {
    // That the program is gone shows when its answers are read.
    if (!send_frame(helper_->socket(), question(index, completions, step))) return;
    context_.alive();
  }
}

rewards::Question RewardServers::question(int index, std::span<const JudgedCompletion> completions,
                                          int32_t step) const {
  const v1::RewardFunc& func = spec_.reward_funcs(index);
  rewards::Question question;
  question.set_reward_func(index);
  *question.mutable_server() = func.server();
  v1::ScoreRequest& request = *question.mutable_request();
  request.set_job_id(context_.job_id);
  request.set_step(step);
  request.set_reward_func(func.name());
  for (const JudgedCompletion& completion : completions)
    *request.add_completions() = message_of(completion);
  return question;
}

rewards::Answer RewardServers::next_answer() {
  do {
    context_.alive();
  } while (!is_readable(helper_->socket(), kAliveMs));
  rewards::Answer answer;
  if (!receive_frame(helper_->socket(), answer))
    throw std::system_error(std::make_error_code(std::errc::broken_pipe),
                            program_.string() + ", which asks reward servers, has ended");
  return answer;
}

void RewardServers::collect(std::span<float> scores) {
  for (size_t num_done = 0; num_done < indices_.size();) {
    const rewards::Answer answer = next_answer();
    switch (answer.kind_case()) {
      case rewards::Answer::kWaiting:
        note_waiting(answer.reward_func(), answer.waiting());
        break;
      case rewards::Answer::kScores:
        take_scores(answer.reward_func(), answer.scores(), scores);
        ++num_done;
        break;
      case rewards::Answer::kRefusal:
        throw UserError("reward_funcs[" + std::to_string(answer.reward_func()) + "].server",
                        name_of(answer.reward_func()) + answer.refusal());
      case rewards::Answer::KIND_NOT_SET:
        throw std::runtime_error("tessera-rewards gave an empty answer");
    }
  }
}

void RewardServers::note_waiting(int index, const std::string& reason) {
  if (reason.empty()) {
    waiting_.erase(index);
  } else {
    waiting_[index] = name_of(index) + reason;
  }
  std::string all;
  for (const auto& [func, why] : waiting_) all += (all.empty() ? "" : "; ") + why;
  context_.on_waiting(all);
}

void RewardServers::take_scores(int index, const rewards::Scores& given,
                                std::span<float> scores) const {
  const auto columns = static_cast<size_t>(spec_.reward_funcs_size());
  for (int i = 0; i < given.values_size(); ++i)
    scores[static_cast<size_t>(i) * columns + static_cast<size_t>(index)] = given.values(i);
}

std::string RewardServers::name_of(int index) const {
  return "reward_funcs[" + std::to_string(index) + "].server.address is \"" +
         spec_.reward_funcs(index).server().address() + "\", ";
}

}  // namespace tessera
