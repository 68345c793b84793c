#include "client/cli/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

namespace tessera::cli {

Signals::Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, source = source_]() mutable {
    int signal = 0;
    sigwait(&signals, &signal);
    source.request_stop();
    sigwait(&signals, &signal);
    _exit(128 + signal);
  }).detach();
}

}  // namespace tessera::cli
