// A configuration of TRL's command line, with one of accelerate, as a job file.
//
// Every key becomes a field, is named in a comment with the reason why it needs none, or is refused
// by name; none is dropped. Defaults that differ from Tessera's are written out.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/yaml_tree.h"
#include "client/trl/keys.h"

namespace tessera::trl {

struct ConfigFile {
  // As it is named in errors and comments.
  std::string name;
  std::string text;
};

struct ImportOptions {
  // sft, dpo, ...; empty: the one method whose keys these are.
  std::string method;
  ConfigFile config;
  std::optional<ConfigFile> accelerate;
  // Where TRL would be started: its relative paths are of there. Absolute.
  std::filesystem::path directory;
  // In place of what the configuration names; empty: as that says.
  std::string model;
  std::vector<std::string> train;
  std::vector<std::string> eval;
  // cpu or cuda; empty: cuda, or cpu where the files say so.
  std::string device;
  // HOST:PORT or unix:///PATH of a server of tessera.rewards, for reward functions in Python.
  std::string reward_server;
};

struct Imported {
  // Meaningful only without errors.
  std::string job_file;
  // "FILE:LINE:COLUMN: sentence": keys that have no counterpart, and rules that the job would
  // break.
  std::vector<std::string> errors;
};

Imported import_config(const ImportOptions& options);

// The methods that have all keys of `root`.
std::vector<Method> methods_of(const YamlNode& root);

}  // namespace tessera::trl
