// Which layers get an adapter, and which parameters are trained.
#include <algorithm>
#include <cmath>
#include <set>

#include "worker/errors.h"
#include "worker/model/decoder.h"
#include "worker/model/dropout.h"
#include "worker/model/linear.h"
#include "worker/model/lora.h"
#include "worker/model/stored_weights.h"

namespace tessera {
namespace {

constexpr char kAllLinear[] = "all-linear";

// Without ".weight" or ".bias".
std::string module_of(const Parameter& parameter) {
  return parameter.name.substr(0, parameter.name.rfind('.'));
}

// As PEFT takes a target: the name, or its end from a dot on.
bool is_target(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

// Finds which of `names` were of use, and complains of the others.
class NamesOfUse {
 public:
  NamesOfUse(const char* field, const std::vector<std::string>& names)
      : field_(field), names_(names), used_(names.size()) {}

  template <typename Fits>
  bool any(const Fits& fits) {
    bool found = false;
    for (size_t i = 0; i < names_.size(); ++i) {
      if (!fits(names_[i])) continue;
      used_[i] = found = true;
    }
    return found;
  }
  void check(const std::string& rule) const {
    const auto unused = std::find(used_.begin(), used_.end(), false);
    if (unused == used_.end()) return;
    const std::string& name = names_[unused - used_.begin()];
    throw UserError(
        field_, std::string(field_) + " holds \"" + name.substr(0, 64) + "\", must hold " + rule);
  }

 private:
  const char* field_;
  const std::vector<std::string>& names_;
  std::vector<bool> used_;
};

std::unique_ptr<LoraAdapter> make_adapter(const Linear& linear, const LoraOptions& options) {
  auto adapter = std::make_unique<LoraAdapter>();
  const std::string name = linear.name();
  const int64_t out = linear.weight.shape[0], in = linear.weight.shape[1], rank = options.rank;
  adapter->a = {name + ".lora_A.weight", {rank, in}};
  adapter->a.fresh = Fresh::kUniform;
  adapter->b = {name + ".lora_B.weight", {out, rank}};
  adapter->b.fresh = Fresh::kZeros;
  if (options.dora) {
    adapter->magnitude = {name + ".lora_magnitude_vector", {out}};
    adapter->magnitude.fresh = Fresh::kRowNorms;
    adapter->magnitude.fresh_from = &linear.weight;
  }
  const auto wide_rank = static_cast<double>(rank);
  adapter->scale = options.alpha / (options.rank_stabilized ? std::sqrt(wide_rank) : wide_rank);
  adapter->dropout = options.dropout;
  adapter->draw = make_draw(name);
  for (Parameter* parameter : {&adapter->a, &adapter->b, &adapter->magnitude})
    parameter->of_adapter = true;
  return adapter;
}

// Marks what is trained whole.
void thaw(const std::vector<Parameter*>& parameters, NamesOfUse& saved) {
  for (Parameter* parameter : parameters) {
    // As PEFT takes these names: the end, from anywhere on.
    const std::string module = module_of(*parameter);
    parameter->trainable = saved.any([&](const std::string& end) { return module.ends_with(end); });
    parameter->of_adapter = parameter->trainable;
  }
}

}  // namespace

void add_adapters(DecoderModel& model, const LoraOptions& options) {
  NamesOfUse saved("peft.lora_modules_to_save", options.modules_to_save);
  for (const auto& layer : model.layers()) thaw(layer->parameters(), saved);
  thaw(model.head_parameters(), saved);
  if (model.config().is_classifier()) {
    Parameter& scores = *model.head_parameters().back();
    scores.trainable = scores.of_adapter = true;
  }
  if (model.tied() && saved.any([](const std::string& end) {
        return std::string_view("lm_head").ends_with(end);
      })) {
    Parameter& matrix = *model.layers().front()->parameters().front();
    matrix.trainable = matrix.of_adapter = true;
  }
  saved.check("ends of names of parts of the model, such as embed_tokens, lm_head or model.norm");

  const std::vector<std::string> defaults{"q_proj", "v_proj"};
  const auto& targets = options.target_modules.empty() ? defaults : options.target_modules;
  NamesOfUse targeted("peft.lora_target_modules", targets);
  std::set<std::string> ends;
  for (const auto& layer : model.layers()) {
    for (Linear* linear : layer->linears()) {
      const std::string name = linear->name();
      ends.insert(name.substr(name.rfind('.') + 1));
      const bool wanted = targeted.any(
          [&](const std::string& end) { return end == kAllLinear || is_target(name, end); });
      if (wanted && !linear->weight.trainable) linear->adapter = make_adapter(*linear, options);
    }
  }
  std::string rule = "all-linear or ends of names of linear layers:";
  for (const std::string& end : ends) rule += " " + end;
  targeted.check(rule);
}

std::vector<std::string> adapted_modules(DecoderModel& model) {
  constexpr std::string_view kEnd = ".lora_A.weight";
  std::vector<std::string> modules;
  for (const Parameter* parameter : all_parameters(model)) {
    if (!parameter->name.ends_with(kEnd)) continue;
    const std::string module = parameter->name.substr(0, parameter->name.size() - kEnd.size());
    modules.push_back(module.substr(module.rfind('.') + 1));
  }
  std::sort(modules.begin(), modules.end());
  modules.erase(std::unique(modules.begin(), modules.end()), modules.end());
  return modules;
}

}  // namespace tessera
