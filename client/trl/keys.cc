#include "client/trl/keys.h"

#include <algorithm>

namespace tessera::trl {
namespace {

const Key* find_in(std::span<const Key> keys, std::string_view name, unsigned method) {
  const auto it = std::ranges::find_if(
      keys, [&](const Key& key) { return key.name == name && (key.methods & method) != 0; });
  return it == keys.end() ? nullptr : &*it;
}

}  // namespace

std::optional<Method> find_method(std::string_view name) {
  for (const MethodName& known : kMethods) {
    if (name == known.name) return known.method;
  }
  return std::nullopt;
}

const char* method_name(Method method) {
  return std::ranges::find(kMethods, method, &MethodName::method)->name;
}

const Key* find_key(std::string_view name, unsigned method) {
  for (const std::span<const Key> keys : {method_keys(), training_keys(), script_keys()}) {
    if (const Key* key = find_in(keys, name, method)) return key;
  }
  return nullptr;
}

const Key* find_launch_key(std::string_view name) { return find_in(launch_keys(), name, kAll); }

}  // namespace tessera::trl
