// Memory that the ranks of one host share: each writes chunks into a ring of its own, which the
// others read.
//
// Chunks are numbered alike on all ranks, from 0; chunk n stands in slot n % kNumSlots of its
// writer's ring until every other rank is done with it. No system call is made while nobody has to
// wait. The memory is a memfd, found by peers through /proc: it has no name, is limited by no
// mount, and is gone when the last rank is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

class SharedRings {
 public:
  static constexpr int64_t kNumSlots = 8;
  static constexpr int64_t kSlotBytes = int64_t{1} << 20;

  // Makes this rank's ring, with so many bytes of memory; others may have other sizes. Throws
  // std::runtime_error: no memory, or no memfd.
  SharedRings(int rank, int size, std::chrono::milliseconds timeout,
              int64_t bytes = kNumSlots * kSlotBytes);
  // To peers that still wait this is a lost peer.
  ~SharedRings();
  SharedRings(const SharedRings&) = delete;
  SharedRings& operator=(const SharedRings&) = delete;

  // What a peer needs to open this ring; of use on this host alone.
  std::string address() const;
  // Opens the others' rings; addresses[r] is rank r's. Throws std::runtime_error: another host,
  // user or container. Call before all that follows.
  void open_peers(const std::vector<std::string>& addresses);

  // Of a ring without slots: all of its memory.
  std::byte* memory(int rank) { return rings_[rank].slots; }
  std::byte* slot(int rank, int64_t chunk);
  // Whether all ranks are done with what this rank wrote into the slot of `chunk` before.
  bool can_write(int64_t chunk) const;
  // Hands this rank's `chunk` to the others. Requires can_write(chunk), and chunks in order.
  void publish(int64_t chunk);
  bool is_published(int rank, int64_t chunk) const;
  // Whether every other rank has finished as many chunks as are before this one.
  bool have_finished(int64_t chunk) const;
  // This rank has read every peer's `chunk`. Requires chunks in order.
  void finish(int64_t chunk);

  // Blocks until `ready`, which may look at all of the above, is true. Throws NetworkError when
  // `timeout` is over, or when a peer is gone and it still is not.
  void wait_until(const std::function<bool()>& ready);

 private:
  struct Header;
  struct Ring {
    Header* header = nullptr;
    std::byte* slots = nullptr;
    int64_t bytes = 0;  // of them all
    int fd = -1;        // of the memory
    int pid_fd = -1;    // becomes readable when the rank's process ends; -1: this process
  };

  static Ring map_ring(int fd);
  void open_peer(int rank, const std::string& address);
  void ring_bells();
  void sleep_unless(uint32_t bell_changed_from);
  int lost_peer() const;  // -1: none

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  std::vector<Ring> rings_;
};

}  // namespace tessera
