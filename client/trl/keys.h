// Every key that TRL's command line and accelerate's configuration take, and what becomes of it in
// a job file. tests/client/trl_keys.txt lists what those versions take; a test holds the two
// together.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera::trl {

// Methods of TRL's command line, as bits.
enum Method : unsigned {
  kSft = 1,
  kDpo = 2,
  kKto = 4,
  kReward = 8,
  kGrpo = 16,
  kRloo = 32,
  kOnline = kGrpo | kRloo,
  kAll = 63,
};

struct MethodName {
  const char* name;
  Method method;
};
inline constexpr MethodName kMethods[] = {{"sft", kSft},       {"dpo", kDpo},   {"kto", kKto},
                                          {"reward", kReward}, {"grpo", kGrpo}, {"rloo", kRloo}};

// None: TRL's command line has no such method, or it is not one of Tessera's.
std::optional<Method> find_method(std::string_view name);
const char* method_name(Method method);

enum class Fate {
  kField,    // the same value in the field `target`
  kNoted,    // no field: it changes nothing here; a comment says why
  kRefused,  // an error, unless the value asks for nothing
  kSpecial,  // a function of its own
};

struct Key {
  std::string_view name;
  // The methods that have it, or have this fate for it.
  unsigned methods;
  Fate fate;
  // kField: a path in the job file, where "%" stands for the method's section.
  const char* target = "";
  // Values that ask for nothing, between bars: "false|auto". null, "" and empty lists always do.
  const char* neutral = "";
  // kNoted: why it is left out; kRefused: why not, and what to use. One phrase.
  const char* why = "";
};

// transformers' TrainingArguments, as TRL's methods have them.
std::span<const Key> training_keys();
// What the methods' own classes add.
std::span<const Key> method_keys();
// ModelConfig, ScriptArguments, DatasetMixtureConfig, and names of earlier versions.
std::span<const Key> script_keys();
// accelerate's file, with the keys of its sections beside its own, and its launcher's arguments,
// which TRL's file may hold as well.
std::span<const Key> launch_keys();

// Of a TRL file; null: `method` has no such key.
const Key* find_key(std::string_view name, unsigned method);
const Key* find_launch_key(std::string_view name);

}  // namespace tessera::trl
