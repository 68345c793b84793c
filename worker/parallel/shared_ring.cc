#include "worker/parallel/shared_ring.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include "worker/parallel/collectives.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Looks this often before it sleeps: a peer that does the same work is nearly there.
constexpr int kSpins = 2000;
// A sleeper looks for dead peers this often; the living ring its bell.
constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 50'000'000};
constexpr size_t kHeaderBytes = 4096;

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Processes that agree on this can open each other's descriptors by process id.
std::string host_identity() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string identity;
  boot >> identity;
  char process_namespace[64] = {};
  if (::readlink("/proc/self/ns/pid", process_namespace, sizeof process_namespace - 1) < 0) {
    throw_errno("/proc/self/ns/pid");
  }
  return identity + "/" + process_namespace + "/" + std::to_string(::getuid());
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct SharedRings::Header {
  // Chunks that the ring's rank has written.
  alignas(64) std::atomic<int64_t> num_published;
  // Chunks of every peer that the rank has read.
  alignas(64) std::atomic<int64_t> num_finished;
  // Changes with whatever the rank may be waiting for.
  alignas(64) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeping;
  std::atomic<uint32_t> gone;
};

SharedRings::Ring SharedRings::map_ring(int fd) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  static_assert(std::atomic<int64_t>::is_always_lock_free);
  struct stat file{};
  if (::fstat(fd, &file) != 0) throw_errno("size of shared memory");
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(file.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw_errno("mmap of shared memory");
  Ring ring;
  ring.bytes = file.st_size - static_cast<int64_t>(kHeaderBytes);
  ring.header = static_cast<Header*>(memory);
  ring.slots = static_cast<std::byte*>(memory) + kHeaderBytes;
  ring.fd = fd;
  return ring;
}

SharedRings::SharedRings(int rank, int size, std::chrono::milliseconds timeout, int64_t bytes)
    : rank_(rank), size_(size), timeout_(timeout), rings_(size) {
  const int fd = ::memfd_create("tessera-ring", MFD_CLOEXEC);
  if (fd < 0) throw_errno("memfd_create");
  // Reserved now: a host that runs out of memory says so here, not by a signal.
  const int error = ::posix_fallocate(fd, 0, static_cast<int64_t>(kHeaderBytes) + bytes);
  if (error != 0) {
    ::close(fd);
    throw std::system_error(error, std::generic_category(), "reserving shared memory");
  }
  rings_[rank_] = map_ring(fd);
}

SharedRings::~SharedRings() {
  rings_[rank_].header->gone.store(1);
  ring_bells();
  for (Ring& ring : rings_) {
    if (ring.header != nullptr)
      ::munmap(ring.header, kHeaderBytes + static_cast<size_t>(ring.bytes));
    if (ring.fd >= 0) ::close(ring.fd);
    if (ring.pid_fd >= 0) ::close(ring.pid_fd);
  }
}

std::string SharedRings::address() const {
  return host_identity() + " " + std::to_string(::getpid()) + " " +
         std::to_string(rings_[rank_].fd);
}

void SharedRings::open_peers(const std::vector<std::string>& addresses) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) open_peer(rank, addresses[rank]);
  }
}

void SharedRings::open_peer(int rank, const std::string& address) {
  const size_t first = address.find(' ');
  const size_t second = address.rfind(' ');
  if (first == std::string::npos || first == second || address.substr(0, first) != host_identity())
    throw std::runtime_error("rank " + std::to_string(rank) + " is not on this host");
  const std::string pid = address.substr(first + 1, second - first - 1);
  const std::string path = "/proc/" + pid + "/fd/" + address.substr(second + 1);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw_errno(path);
  try {
    rings_[rank] = map_ring(fd);
  } catch (...) {
    ::close(fd);
    throw;
  }
  const pid_t process = std::atoi(pid.c_str());
  if (process == ::getpid()) return;
  rings_[rank].pid_fd = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  if (rings_[rank].pid_fd < 0) throw_errno("pidfd_open of rank " + std::to_string(rank));
}

std::byte* SharedRings::slot(int rank, int64_t chunk) {
  return rings_[rank].slots + (chunk % kNumSlots) * kSlotBytes;
}

bool SharedRings::can_write(int64_t chunk) const { return have_finished(chunk - kNumSlots + 1); }

bool SharedRings::have_finished(int64_t chunk) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && rings_[rank].header->num_finished.load() < chunk) return false;
  }
  return true;
}

void SharedRings::publish(int64_t chunk) {
  rings_[rank_].header->num_published.store(chunk + 1);
  ring_bells();
}

bool SharedRings::is_published(int rank, int64_t chunk) const {
  return rings_[rank].header->num_published.load() > chunk;
}

void SharedRings::finish(int64_t chunk) {
  rings_[rank_].header->num_finished.store(chunk + 1);
  ring_bells();
}

void SharedRings::ring_bells() {
  for (int rank = 0; rank < size_; ++rank) {
    Header* header = rings_[rank].header;
    if (rank == rank_ || header == nullptr) continue;
    header->bell.fetch_add(1);
    if (header->sleeping.load() == 0) continue;
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&header->bell), FUTEX_WAKE, INT_MAX, nullptr,
              nullptr, 0);
  }
}

void SharedRings::sleep_unless(uint32_t bell_changed_from) {
  Header& header = *rings_[rank_].header;
  header.sleeping.store(1);
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&header.bell), FUTEX_WAIT, bell_changed_from,
            &kNap, nullptr, 0);
  header.sleeping.store(0);
}

int SharedRings::lost_peer() const {
  for (int rank = 0; rank < size_; ++rank) {
    const Ring& ring = rings_[rank];
    if (rank == rank_) continue;
    if (ring.header->gone.load() != 0) return rank;
    pollfd ended{.fd = ring.pid_fd, .events = POLLIN, .revents = 0};
    if (ring.pid_fd >= 0 && ::poll(&ended, 1, 0) > 0) return rank;
  }
  return -1;
}

void SharedRings::wait_until(const std::function<bool()>& ready) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return;
    pause_briefly();
  }
  const auto deadline = Clock::now() + timeout_;
  for (;;) {
    // The bell is read first, so that what changes after `ready` looked ends the sleep.
    const uint32_t bell = rings_[rank_].header->bell.load();
    const int lost = lost_peer();
    if (ready()) return;
    if (lost >= 0) throw NetworkError("rank " + std::to_string(lost) + " has ended");
    if (Clock::now() >= deadline) {
      throw NetworkError("the other ranks did not answer in " + std::to_string(timeout_.count()) +
                         " ms");
    }
    sleep_unless(bell);
  }
}

}  // namespace tessera
