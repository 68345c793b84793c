// Runs a fuzz target without libFuzzer: its seeds, and a number of mutations of them that are the
// same each time. What `ninja fuzz-all` does for minutes with feedback, ctest does so in a moment.
//
//   fuzz_TARGET RUNS SEEDS_DIR [DICTIONARY]
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;

constexpr unsigned kSecondsAnInput = 30;
constexpr rlim_t kMaxBytes = rlim_t{3} << 30;
constexpr size_t kMaxInputBytes = 64 << 10;
constexpr int kMaxEdits = 6;
constexpr const char* kFound = "fuzz-input";

// For the handler: what is being tried.
const std::string* current = nullptr;

// What ends the process leaves its input behind, as a seed to be.
void keep_input(int signal) {
  const int fd = ::open(kFound, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd >= 0 && current != nullptr) {
    [[maybe_unused]] const ssize_t written = ::write(fd, current->data(), current->size());
  }
  constexpr char text[] = "the input that did it is in the file fuzz-input\n";
  [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, text, sizeof text - 1);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void guard() {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) {
    ::signal(signal, keep_input);
  }
  // Memory without bound ends as std::bad_alloc, which no target catches.
  const rlimit limit{kMaxBytes, kMaxBytes};
  ::setrlimit(RLIMIT_DATA, &limit);
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> read_seeds(const fs::path& directory) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(directory)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const fs::path& path : paths) seeds.push_back(read_file(path));
  return seeds;
}

// The entries of a dictionary of libFuzzer: lines "WORD", where \" \\ and \xHH stand for a byte.
std::vector<std::string> read_words(const fs::path& path) {
  std::vector<std::string> words;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find('"');
    const size_t end = line.rfind('"');
    if (line.starts_with('#') || begin == end) continue;
    std::string word;
    for (size_t i = begin + 1; i < end; ++i) {
      if (line[i] == '\\' && line[i + 1] == 'x') {
        word += static_cast<char>(std::stoi(line.substr(i + 2, 2), nullptr, 16));
        i += 3;
      } else {
        word += line[i] == '\\' ? line[++i] : line[i];
      }
    }
    words.push_back(word);
  }
  return words;
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& seeds, const std::vector<std::string>& words)
      : seeds_(seeds), words_(words) {}

  std::string next() {
    std::string input = seeds_[below(seeds_.size())];
    for (size_t edits = 1 + below(kMaxEdits); edits > 0; --edits) edit(input);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  // std::uniform_int_distribution is not the same everywhere.
  size_t below(size_t bound) { return static_cast<size_t>(random_() % bound); }

  void edit(std::string& input) {
    const size_t at = below(input.size() + 1);
    const size_t rest = input.size() - at;
    const size_t length = std::min(rest, 1 + below(1 + below(64)));
    switch (below(7)) {
      case 0:
        if (rest > 0) input[at] = static_cast<char>(random_());
        break;
      case 1:
        if (rest > 0) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:  // a piece again, some times
        input.insert(at, repeated(input.substr(at, length), 1 + below(16)));
        break;
      case 4:  // a piece of another seed
        splice(input, at);
        break;
      case 5:
        if (!words_.empty()) input.insert(at, words_[below(words_.size())]);
        break;
      default:
        if (!words_.empty()) input.replace(at, length, words_[below(words_.size())]);
    }
  }

  static std::string repeated(const std::string& piece, size_t times) {
    std::string all;
    for (; times > 0; --times) all += piece;
    return all;
  }

  void splice(std::string& input, size_t at) {
    const std::string& other = seeds_[below(seeds_.size())];
    const size_t begin = below(other.size() + 1);
    input.insert(at, other, begin, 1 + below(other.size() - begin + 1));
  }

  const std::vector<std::string>& seeds_;
  const std::vector<std::string>& words_;
  std::mt19937_64 random_{20261122};
};

void try_input(const std::string& input) {
  // Of its own size to the byte: reading past the end is seen by a sanitizer.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  current = &input;
  ::alarm(kSecondsAnInput);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  ::alarm(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "usage: %s RUNS SEEDS_DIR [DICTIONARY]\n", argv[0]);
    return 2;
  }
  guard();
  const long runs = std::strtol(argv[1], nullptr, 10);
  const std::vector<std::string> seeds = read_seeds(argv[2]);
  const std::vector<std::string> words = argc == 4 ? read_words(argv[3]) : read_words({});
  if (seeds.empty()) {
    std::fprintf(stderr, "%s holds no seeds\n", argv[2]);
    return 1;
  }
  for (const std::string& seed : seeds) try_input(seed);
  Mutator mutator(seeds, words);
  for (long run = 0; run < runs; ++run) try_input(mutator.next());
  std::printf("%zu seeds and %ld mutations of them\n", seeds.size(), runs);
  return 0;
}
