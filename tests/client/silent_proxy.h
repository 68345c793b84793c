// A way to a service that falls silent, as a network that loses all but short packets: no end of a
// connection is seen, and new ones are made and carry nothing.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

class SilentProxy {
 public:
  // Listens on a port of 127.0.0.1, for the service at the Unix socket `path`.
  explicit SilentProxy(std::string path) : path_(std::move(path)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    ::listen(listener_, 16);
    socklen_t size = sizeof(address);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { carry(); });
  }
  ~SilentProxy() {
    is_over_ = true;
    ::eventfd_write(wake_, 1);
    thread_.join();
    for (const auto& [from, to] : peers_) ::close(from);
    ::close(listener_);
    ::close(wake_);
  }
  SilentProxy(const SilentProxy&) = delete;
  SilentProxy& operator=(const SilentProxy&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // For good: connections that there are carry nothing from now on, new ones what opens them.
  void be_silent() {
    is_silent_ = true;
    ::eventfd_write(wake_, 1);
  }

 private:
  // The preface and the settings of HTTP/2.
  static constexpr int kOpeningReads = 1;

  void carry() {
    while (!is_over_) {
      std::vector<pollfd> watched{{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
      for (const auto& [from, to] : peers_) {
        if (num_reads_[from] < kOpeningReads || !is_silent_) watched.push_back({from, POLLIN, 0});
      }
      if (::poll(watched.data(), watched.size(), -1) < 0) return;
      eventfd_t ignored;
      if (watched[0].revents != 0) ::eventfd_read(wake_, &ignored);
      if (watched[1].revents != 0) accept();
      for (size_t i = 2; i < watched.size(); ++i) {
        const bool is_carried = num_reads_[watched[i].fd] < kOpeningReads || !is_silent_;
        if (watched[i].revents != 0 && is_carried) forward(watched[i].fd);
      }
    }
  }

  void accept() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    const int client = ::accept(listener_, nullptr, nullptr);
    const int service = ::socket(AF_UNIX, SOCK_STREAM, 0);
    ::connect(service, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    peers_[client] = service;
    peers_[service] = client;
    num_reads_[client] = num_reads_[service] = 0;
  }

  void forward(int from) {
    const auto peer = peers_.find(from);
    if (peer == peers_.end()) return;  // closed with the other one just now
    const int to = peer->second;
    ++num_reads_[from];
    char bytes[1 << 14];
    const ssize_t count = ::read(from, bytes, sizeof(bytes));
    if (count > 0 && ::write(to, bytes, static_cast<size_t>(count)) == count) return;
    for (const int end : {from, to}) {
      peers_.erase(end);
      ::close(end);
    }
  }

  const std::string path_;
  const int listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
  const int wake_ = ::eventfd(0, 0);
  int port_ = 0;
  std::atomic<bool> is_silent_ = false, is_over_ = false;
  // The thread's, and who joined it.
  std::map<int, int> peers_;
  std::map<int, int> num_reads_;
  std::thread thread_;
};

}  // namespace tessera
