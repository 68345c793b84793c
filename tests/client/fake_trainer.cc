// Stands in for tessera-trainer in the tests of the command line. By the job's name:
//
//   steps    training.max_steps steps, then Finished
//   fail     one step, then a Failure
//   gated    one step, waits until OUTPUT_DIR/gate is there, then as steps; obeys Stop meanwhile
#include <fcntl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include "tessera/v1/trainer.pb.h"

namespace {

namespace v1 = tessera::v1;
constexpr int kPollMs = 20;

class Trainer {
 public:
  Trainer(const v1::TrainerInput& input, const std::string& events, const std::string& commands)
      : input_(input),
        events_(open(events.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600)),
        commands_(open(commands.c_str(), O_RDWR | O_NONBLOCK)) {}

  int run() {
    v1::TrainerEvent event;
    event.mutable_started()->set_pid(getpid());
    emit(event);
    step(1);
    const std::string& name = input_.spec().name();
    if (name == "fail") return fail();
    bool stopped = false;
    if (name == "gated") stopped = !wait_for_gate();
    for (int i = 2; i <= total() && !stopped; ++i) step(i);
    event.mutable_finished()->set_stopped(stopped);
    event.mutable_finished()->set_output(stopped ? "" : input_.spec().training().output_dir());
    emit(event);
    return 0;
  }

 private:
  int total() const { return input_.spec().training().max_steps(); }

  void emit(const v1::TrainerEvent& event) const {
    google::protobuf::util::SerializeDelimitedToFileDescriptor(event, events_);
  }

  // Metrics are those of all ranks together: rank 0 reports them.
  void step(int number) const {
    if (input_.rank() != 0) return;
    v1::TrainerEvent event;
    event.mutable_step()->set_step(number);
    event.mutable_step()->set_total_steps(total());
    emit(event);
    event.mutable_memory()->set_rank(input_.rank());
    event.mutable_memory()->set_peak_bytes(1 << 20);
    emit(event);
  }

  int fail() const {
    v1::TrainerEvent event;
    event.mutable_failed()->set_kind(v1::Failure::USER);
    event.mutable_failed()->set_message("data.train holds no documents");
    emit(event);
    return 1;
  }

  // False when a command came first: the tests send no other than Stop.
  bool wait_for_gate() const {
    const std::filesystem::path gate = input_.spec().training().output_dir() + "/gate";
    pollfd commands{.fd = commands_, .events = POLLIN, .revents = 0};
    while (!std::filesystem::exists(gate)) {
      if (poll(&commands, 1, kPollMs) > 0) return false;
    }
    return true;
  }

  const v1::TrainerInput& input_;
  int events_;
  int commands_;
};

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  bool check = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--check") {
      check = true;
    } else if (i + 1 < argc) {
      flags[name] = argv[++i];
    }
  }
  if (check) {
    std::cout << "{}\n";
    return 0;
  }
  v1::TrainerInput input;
  std::ifstream file(flags["--input"], std::ios::binary);
  if (!input.ParseFromIstream(&file)) return 2;
  return Trainer(input, flags["--events"], flags["--commands"]).run();
}
