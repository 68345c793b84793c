// Stands in for tessera-trainer in the agent's tests: reads its input and acts by the job's name.
//
//   steps-N       N step events, then Finished
//   gated-N       N/2 step events, waits for the file OUTPUT_DIR/gate, the other N/2, Finished
//   die-gated     waits for the gate, then exits with 3 and says nothing
//   fail          reports a Failure, exits with 1
//   silent        exits with 3 and says nothing
//   torn          three steps, half an event, then SIGKILLs itself
//   garbage       three steps, then bytes that are no events; goes on living
//   hang          Started, then nothing
//   hang-NUMBER   Started, then an answer to each RecordCollectives and nothing else
//   obedient      steps until the Stop command comes, then Finished
//   stubborn      steps for ever, reads no command, ignores SIGTERM; has a child of its own
//   print-MODE    writes to standard output (see print()), then Finished
//   rendezvous    rank 0 accepts on the inherited socket and says what it reads
#include <arpa/inet.h>
#include <fcntl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "tessera/v1/generate.pb.h"
#include "tessera/v1/plan.pb.h"
#include "tessera/v1/trainer.pb.h"

namespace {

namespace v1 = tessera::v1;
using namespace std::chrono_literals;

class Trainer {
 public:
  explicit Trainer(std::map<std::string, std::string> flags) : flags_(std::move(flags)) {
    std::ifstream file(flags_["--input"], std::ios::binary);
    if (!input_.ParseFromIstream(&file)) std::exit(2);
    if (flags_.contains("--events")) {
      events_ = ::open(flags_["--events"].c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      commands_ = ::open(flags_["--commands"].c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
      if (events_ < 0 || commands_ < 0) std::exit(2);
    }
  }

  int check();
  int train();

 private:
  void emit(const v1::TrainerEvent& event) {
    std::ostringstream bytes;
    google::protobuf::util::SerializeDelimitedToOstream(event, &bytes);
    write_raw(bytes.str());
  }
  void write_raw(const std::string& bytes) {
    if (::write(events_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      std::exit(2);
    }
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      v1::TrainerEvent event;
      event.mutable_step()->set_step(++step_);
      emit(event);
    }
  }
  void say(const std::string& text) {
    v1::TrainerEvent event;
    event.mutable_log()->set_text(text);
    emit(event);
  }
  int finish(bool stopped = false) {
    v1::TrainerEvent event;
    event.mutable_finished()->set_step(step_);
    event.mutable_finished()->set_stopped(stopped);
    emit(event);
    return 0;
  }
  void await_gate() {
    const std::filesystem::path gate =
        std::filesystem::path(input_.spec().training().output_dir()) / "gate";
    while (!std::filesystem::exists(gate)) std::this_thread::sleep_for(5ms);
  }
  std::optional<v1::TrainerCommand> next_command(int timeout_ms);
  int obey();
  int answer_records();
  int be_stubborn();
  int print(const std::string& mode);
  int rendezvous();

  std::map<std::string, std::string> flags_;
  v1::TrainerInput input_;
  int events_ = -1;
  int commands_ = -1;
  int step_ = 0;
};

int Trainer::check() {
  const std::string& name = input_.spec().name();
  if (name == "good") {
    std::cout << R"({"rehearsal": {"peakBytes": "1000"}})";
  } else if (name == "bad") {
    std::cout << R"({"violations": [{"kind": "USER", "field": "model.path", "message": "no"}]})";
  } else if (name == "endless") {
    while (true) ::pause();
  } else {
    std::cerr << "something broke\n";
    return 4;
  }
  return 0;
}

int Trainer::train() {
  v1::TrainerEvent started;
  started.mutable_started()->set_pid(::getpid());
  emit(started);
  const std::string& name = input_.spec().name();
  const auto number = [&] { return std::stoi(name.substr(name.find('-') + 1)); };
  if (name.starts_with("steps-")) {
    steps(number());
    return finish();
  }
  if (name.starts_with("gated-")) {
    steps(number() / 2);
    await_gate();
    steps(number() - number() / 2);
    return finish();
  }
  if (name == "die-gated") {
    await_gate();
    return 3;
  }
  if (name == "fail") {
    v1::TrainerEvent event;
    event.mutable_failed()->set_kind(v1::Failure::USER);
    event.mutable_failed()->set_field("data.train");
    event.mutable_failed()->set_message("data.train is empty");
    emit(event);
    return 1;
  }
  if (name == "silent") return 3;
  if (name == "torn") {
    steps(3);
    write_raw("\x50torn");  // 80 bytes were announced.
    ::kill(::getpid(), SIGKILL);
  }
  if (name == "garbage") {
    steps(3);
    write_raw(std::string(64, '\xff'));
  }
  if (name.starts_with("hang-")) return answer_records();
  if (name == "obedient") return obey();
  if (name == "stubborn") return be_stubborn();
  if (name.starts_with("print-")) return print(name.substr(6));
  if (name == "rendezvous") return rendezvous();
  while (true) ::pause();
}

// The command that comes within so long, if one does; each comes whole.
std::optional<v1::TrainerCommand> Trainer::next_command(int timeout_ms) {
  pollfd readable{commands_, POLLIN, 0};
  if (::poll(&readable, 1, timeout_ms) != 1) return std::nullopt;
  char buffer[512];
  const ssize_t count = ::read(commands_, buffer, sizeof(buffer));
  std::istringstream stream(std::string(buffer, static_cast<size_t>(std::max<ssize_t>(0, count))));
  google::protobuf::io::IstreamInputStream input(&stream);
  v1::TrainerCommand command;
  if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&command, &input, nullptr))
    return std::nullopt;
  return command;
}

int Trainer::obey() {
  while (true) {
    steps(1);
    const auto command = next_command(10);
    if (command && command->has_stop()) return finish(/*stopped=*/true);
  }
}

int Trainer::answer_records() {
  while (true) {
    const auto command = next_command(-1);
    if (!command || !command->has_record_collectives()) continue;
    v1::TrainerEvent event;
    event.mutable_collectives()->set_phase("data");
    emit(event);
  }
}

int Trainer::be_stubborn() {
  ::signal(SIGTERM, SIG_IGN);
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  say("child " + std::to_string(child));
  while (true) {
    steps(1);
    std::this_thread::sleep_for(10ms);
  }
}

int Trainer::print(const std::string& mode) {
  if (mode == "lines") {
    std::cout << "plain\n" << "bad \xff byte\r\n" << std::flush;
    std::cerr << "to stderr\n";
    std::cout << std::string(10000, 'x') << "\n" << "no newline" << std::flush;
  } else if (mode == "environment") {
    for (const char* name :
         {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES"}) {
      const char* value = std::getenv(name);
      std::cout << name << "=" << (value ? value : "(none)") << "\n";
    }
    std::cout << "session " << (::getsid(0) == ::getpid()) << "\n";
    std::cout << "cwd " << std::filesystem::current_path().filename().string() << std::endl;
  } else {
    const std::string line(1023, 'y');
    for (int i = 0; i < 18 << 10; ++i) std::cout << line << '\n';  // 18 MiB
    std::cout << std::flush;
  }
  return finish();
}

int Trainer::rendezvous() {
  const v1::Rendezvous& where = input_.rendezvous();
  char byte = 0;
  if (input_.rank() == 0) {
    for (int peer = 1; peer < input_.local_world_size(); ++peer) {
      const int fd = ::accept(where.listen_fd(), nullptr, nullptr);
      if (fd < 0 || ::read(fd, &byte, 1) != 1) return 5;
      say(std::string("accepted ") + byte);
    }
    return finish();
  }
  if (where.listen_fd() != 0) return 5;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(where.port()));
  ::inet_pton(AF_INET, where.address().c_str(), &address.sin_addr);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  byte = static_cast<char>('0' + input_.rank());
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::write(fd, &byte, 1) != 1) {
    return 5;
  }
  return finish();
}

// Answers a PlanRequest with a plan that shows it was read.
int plan(const std::string& path) {
  v1::PlanRequest request;
  std::ifstream file(path, std::ios::binary);
  if (!request.ParseFromIstream(&file)) return 4;
  std::cout << R"({"asWritten": {"worldSize": )" << request.world_size() << "}}";
  return 0;
}

// Repeats the prompts of a GenerateRequest; "endless" is repeated for ever, "broken" never.
int generate(const std::string& path) {
  v1::GenerateRequest request;
  std::ifstream file(path, std::ios::binary);
  if (!request.ParseFromIstream(&file)) return 4;
  const auto write = [](const v1::GenerateReply& reply) {
    google::protobuf::util::SerializeDelimitedToOstream(reply, &std::cout);
    std::cout.flush();
  };
  for (int i = 0; i < request.prompts_size(); ++i) {
    v1::GenerateReply reply;
    if (request.prompts(i).text() == "broken") {
      reply.mutable_failure()->set_kind(v1::Failure::USER);
      reply.mutable_failure()->set_field("prompts[0]");
      write(reply);
      return 0;
    }
    reply.mutable_text()->set_prompt(i);
    reply.mutable_text()->set_text(request.prompts(i).text());
    write(reply);
    while (request.prompts(i).text() == "endless") ::pause();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  bool check = false, plans = false, generates = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--check") {
      check = true;
    } else if (std::string_view(argv[i]) == "--plan") {
      plans = true;
    } else if (std::string_view(argv[i]) == "--generate") {
      generates = true;
    } else if (i + 1 < argc) {
      flags[argv[i]] = argv[i + 1];
      ++i;
    }
  }
  if (plans) return plan(flags["--input"]);
  if (generates) return generate(flags["--input"]);
  Trainer trainer(std::move(flags));
  return check ? trainer.check() : trainer.train();
}
