#include "worker/trainer/generate_text.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>

#include "proto/spec/rules.h"
#include "worker/data/chat_template.h"
#include "worker/data/json.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"
#include "worker/generate/end_tokens.h"
#include "worker/generate/engine.h"
#include "worker/generate/sampler.h"
#include "worker/generate/text_stream.h"
#include "worker/model/adapter_files.h"
#include "worker/model/stored_weights.h"
#include "worker/trainer/export_checkpoint.h"
#include "worker/trainer/plan.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxPrompts = 4096;
constexpr int64_t kMaxCompletions = 4096;
// What the cache may take before sequences wait for each other; one sequence always fits.
constexpr int64_t kMaxCacheBytes = int64_t{2} << 30;

// An empty directory that goes with this.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (fs::temp_directory_path() / "tessera-generate-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), name);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

bool holds_checkpoint(const fs::path& directory) {
  if (fs::exists(directory / "state.json")) return true;
  return std::ranges::any_of(fs::directory_iterator(directory), [](const auto& entry) {
    return entry.path().filename().string().starts_with("checkpoint-");
  });
}

fs::path base_of_adapter(const fs::path& directory) {
  const JsonFile file(directory / kAdapterConfig, "model");
  const fs::path base = file.root().at("base_model_name_or_path").string();
  if (fs::exists(base / "config.json")) return base;
  file.root().at("base_model_name_or_path").fail("must be a directory with a config.json");
}

// What is loaded, wherever it comes from.
struct Source {
  fs::path model, adapter, tokenizer;
  std::unique_ptr<TemporaryDirectory> exported;  // of a checkpoint
};

Source find_source(const v1::GenerateRequest& request) {
  Source source;
  fs::path directory = request.model();
  if (!fs::is_directory(directory))
    throw UserError("model", "model is \"" + request.model() + "\", must be a directory");
  if (!fs::exists(directory / "config.json") && !fs::exists(directory / kAdapterConfig)) {
    if (!holds_checkpoint(directory)) {
      throw UserError("model", "model is " + request.model() +
                                   ", which holds no config.json, no adapter_config.json and no "
                                   "checkpoint");
    }
    source.exported = std::make_unique<TemporaryDirectory>();
    const fs::path to = source.exported->path() / "model";
    export_checkpoint({.checkpoint = directory, .directory = to});
    directory = to;
  }
  const bool is_adapter = fs::exists(directory / kAdapterConfig);
  source.model = is_adapter ? base_of_adapter(directory) : directory;
  if (is_adapter) source.adapter = directory;
  source.tokenizer = has_tokenizer(directory) ? directory : source.model;
  if (!request.tokenizer().empty()) source.tokenizer = request.tokenizer();
  return source;
}

v1::JobSpec spec_of(const v1::GenerateRequest& request, const Source& source) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_path(source.model.string());
  spec.mutable_model()->set_tokenizer(source.tokenizer.string());
  if (!source.adapter.empty()) spec.mutable_peft()->set_adapter_path(source.adapter.string());
  const bool is_cuda = request.device() == "cuda";
  spec.mutable_resources()->set_device(is_cuda ? "cuda" : "cpu");
  spec.mutable_model()->set_dtype(request.dtype().empty() ? (is_cuda ? "bfloat16" : "float32")
                                                          : request.dtype());
  spec::fill_defaults(spec);
  return spec;
}

void check_request(const v1::GenerateRequest& request) {
  const auto refuse = [](const char* field, const std::string& value, const std::string& rule) {
    throw UserError(field, std::string(field) + " is " + value + ", must be " + rule);
  };
  if (!request.device().empty() && request.device() != "cpu" && request.device() != "cuda")
    refuse("device", "\"" + request.device() + "\"", "cpu or cuda");
  if (const std::string& dtype = request.dtype();
      !dtype.empty() && dtype != "float32" && dtype != "bfloat16")
    refuse("dtype", "\"" + dtype + "\"", "float32 or bfloat16");
  const int64_t prompts = request.prompts_size();
  if (prompts < 1 || prompts > kMaxPrompts)
    refuse("prompts", "a list of " + std::to_string(prompts), "of 1 to 4096");
  const v1::Sampling& sampling = request.sampling();
  if (!sampling.has_num_completions()) return;
  const int64_t completions = sampling.num_completions();
  if (completions < 1 || completions > kMaxCompletions)
    refuse("sampling.num_completions", std::to_string(completions), "from 1 to 4096");
}

SamplingParams params_of(const v1::Sampling& sampling, std::vector<int32_t> end_tokens) {
  SamplingParams params;
  const auto set = [](auto& to, bool is_given, const auto& value) {
    if (is_given) to = value;
  };
  set(params.temperature, sampling.has_temperature(), sampling.temperature());
  set(params.top_k, sampling.has_top_k(), sampling.top_k());
  set(params.top_p, sampling.has_top_p(), sampling.top_p());
  set(params.min_p, sampling.has_min_p(), sampling.min_p());
  set(params.repetition_penalty, sampling.has_repetition_penalty(), sampling.repetition_penalty());
  set(params.max_new_tokens, sampling.has_max_new_tokens(), sampling.max_new_tokens());
  params.stop_strings = {sampling.stop_strings().begin(), sampling.stop_strings().end()};
  params.stop_tokens = std::move(end_tokens);
  check_sampling(params, "sampling");
  return params;
}

// Prompts as tokens.
class PromptEncoder {
 public:
  PromptEncoder(const Tokenizer& tokenizer, fs::path directory)
      : tokenizer_(tokenizer), directory_(std::move(directory)), encoder_(tokenizer) {}

  std::vector<int32_t> encode(const v1::GeneratePrompt& prompt, const std::string& field) {
    std::vector<int32_t> ids;
    try {
      if (prompt.has_conversation()) {
        encoder_.encode(render(prompt.conversation()), ids, /*add_special_tokens=*/false);
      } else {
        encoder_.encode(prompt.text(), ids);
      }
    } catch (const UserError&) {
      throw;
    } catch (const std::exception& error) {
      throw UserError(field, field + ": " + error.what());
    }
    if (ids.empty()) throw UserError(field, field + " has no tokens, must have one or more");
    return ids;
  }

 private:
  std::string render(const v1::Conversation& conversation) {
    if (!templates_) {
      const ChatTemplateSources sources = read_chat_templates(directory_, "tokenizer");
      if (sources.empty()) {
        throw UserError("tokenizer", "tokenizer " + directory_.string() +
                                         " has no chat template, which conversations need");
      }
      templates_.emplace(sources, tokenizer_.named_tokens(), std::time(nullptr), "tokenizer");
    }
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    for (const v1::ChatMessage& message : conversation.messages())
      messages.push_back({{"role", message.role()}, {"content", message.content()}});
    return templates_->render(messages, {}, /*add_generation_prompt=*/true).text;
  }

  const Tokenizer& tokenizer_;
  const fs::path directory_;
  Encoder encoder_;
  std::optional<ChatTemplates> templates_;
};

std::vector<GenerationRequest> read_prompts(const v1::GenerateRequest& request,
                                            const SamplingParams& sampling,
                                            PromptEncoder&& encoder) {
  const v1::Sampling& options = request.sampling();
  const int64_t completions = options.has_num_completions() ? options.num_completions() : 1;
  std::vector<GenerationRequest> prompts;
  for (int i = 0; i < request.prompts_size(); ++i) {
    GenerationRequest& prompt = prompts.emplace_back();
    prompt.prompt = encoder.encode(request.prompts(i), "prompts[" + std::to_string(i) + "]");
    prompt.sampling = sampling;
    prompt.seeds.clear();
    for (int64_t k = 0; k < completions; ++k)
      prompt.seeds.push_back(options.seed() + static_cast<uint64_t>(i * completions + k));
  }
  return prompts;
}

// Turns tokens into replies.
class Replies {
 public:
  Replies(const v1::GenerateRequest& request, const Tokenizer& tokenizer,
          const std::function<void(const v1::GenerateReply&)>& reply)
      : tokenizer_(tokenizer), reply_(reply), tells_logprobs_(request.logprobs()) {}

  void token(const GeneratedToken& token) {
    Made& made = of(token.request, token.sample);
    made.tokens.push_back(token.sampled.token);
    if (tells_logprobs_) {
      made.reply.add_token_ids(token.sampled.token);
      made.reply.add_logprobs(token.sampled.logprob);
    }
    send(token.request, token.sample, made, made.text.next(made.tokens));
  }

  void end(const Completion& completion, int64_t prompt_tokens) {
    Made& made = of(completion.request, completion.sample);
    send(completion.request, completion.sample, made, made.text.rest(made.tokens));
    v1::GenerateReply reply;
    v1::GeneratedEnd& end = *reply.mutable_end();
    end.set_prompt(static_cast<int32_t>(completion.request));
    end.set_completion(static_cast<int32_t>(completion.sample));
    end.set_finish_reason(finish_name(completion.finish));
    end.set_num_prompt_tokens(static_cast<int32_t>(prompt_tokens));
    end.set_num_tokens(static_cast<int32_t>(std::ssize(completion.tokens)));
    reply_(reply);
  }

 private:
  struct Made {
    explicit Made(const Tokenizer& tokenizer) : text(tokenizer) {}
    TextStream text;
    std::vector<int32_t> tokens;
    v1::GeneratedText reply;  // that was not sent yet
  };

  Made& of(int64_t request, int64_t sample) {
    return made_.try_emplace({request, sample}, tokenizer_).first->second;
  }

  void send(int64_t request, int64_t sample, Made& made, std::string text) {
    if (text.empty() && made.reply.token_ids().empty()) return;
    v1::GenerateReply reply;
    *reply.mutable_text() = std::move(made.reply);
    made.reply.Clear();
    reply.mutable_text()->set_prompt(static_cast<int32_t>(request));
    reply.mutable_text()->set_completion(static_cast<int32_t>(sample));
    reply.mutable_text()->set_text(std::move(text));
    reply_(reply);
  }

  const Tokenizer& tokenizer_;
  const std::function<void(const v1::GenerateReply&)>& reply_;
  const bool tells_logprobs_;
  std::map<std::pair<int64_t, int64_t>, Made> made_;
};

// For all completions at their longest, as far as the cache may be that large.
int64_t pages_of(const std::vector<GenerationRequest>& prompts, int64_t page_bytes) {
  int64_t all = 0, most = 0;
  for (const GenerationRequest& prompt : prompts) {
    const int64_t pages = pages_for(std::ssize(prompt.prompt) + prompt.sampling.max_new_tokens);
    all += pages * std::ssize(prompt.seeds);
    most = std::max(most, pages);
  }
  return std::max(most, std::min(all, kMaxCacheBytes / page_bytes));
}

}  // namespace

void generate_text(const v1::GenerateRequest& request,
                   const std::function<void(const v1::GenerateReply&)>& reply) {
  check_request(request);
  const Source source = find_source(request);
  const v1::JobSpec spec = spec_of(request, source);
  const ModelConfig config = read_model_config(source.model);
  const Tokenizer tokenizer(source.tokenizer);
  const SamplingParams sampling =
      params_of(request.sampling(), end_tokens(source.model, tokenizer));
  const std::vector<GenerationRequest> prompts =
      read_prompts(request, sampling, PromptEncoder(tokenizer, source.tokenizer));

  const Mesh mesh(*make_single_world(), {});
  const at::Device device(request.device() == "cuda" ? at::kCUDA : at::kCPU);
  const WeightFiles weights = WeightFiles::open(source.model);
  TrainableModel trainable = build_model(spec, config, mesh, device);
  check_weights(*trainable.model, weights);
  load_weights(spec, trainable, weights, /*rank=*/0);
  std::vector<ShardedUnit*> units;
  for (const auto& unit : trainable.units) units.push_back(unit.get());

  Replies replies(request, tokenizer, reply);
  const at::ScalarType dtype = spec.model().dtype() == "bfloat16" ? at::kBFloat16 : at::kFloat;
  EngineOptions options;
  options.num_pages = pages_of(prompts, kv_page_bytes(config, dtype));
  options.many_sequences = false;  // else a completion alone would differ from one among many
  options.min_rows = 1;
  options.on_token = [&](const GeneratedToken& token) { replies.token(token); };
  Engine engine({*trainable.model, units, mesh.shard, &tokenizer}, options);
  for (const GenerationRequest& prompt : prompts) engine.submit(prompt);
  try {
    while (engine.step()) {
      for (const Completion& completion : engine.take_finished())
        replies.end(completion, std::ssize(prompts[completion.request].prompt));
    }
  } catch (const NonFiniteLogits&) {
    throw UserError("model", "model is \"" + request.model() +
                                 "\", whose logits are not finite in " + spec.model().dtype() +
                                 ": no token can be chosen by them");
  }
}

}  // namespace tessera
