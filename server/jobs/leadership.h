// Which of the coordinators that share a database acts: one row, a lease by the database's clock.
//
// Each time another coordinator takes the lease the epoch grows. Two things keep a coordinator that
// was deposed from acting, however long it was stopped or cut off:
//   - every commit of its connections asks for its epoch (postgres.h), so it commits nothing;
//   - it answers nobody, agents' heartbeats above all, once its lease has run out by its own clock:
//     see Leadership::check.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "server/jobs/database.h"
#include "server/jobs/postgres.h"

namespace tessera::server {

// The row. Not thread safe. Every method throws DatabaseError.
class Election {
 public:
  Election(const PostgresAddress& address, absl::Duration lease)
      : lease_(lease), database_(open_postgres(address, {})) {}

  struct View {
    int64_t epoch = 0;
    // Where the leader is, or the last one was. Empty: there was none yet.
    std::string leader;
    // Until its lease ends; negative: it has ended.
    absl::Duration left;
  };
  // Makes the row where there is none.
  View look();
  // The new epoch, if the lease of `seen` has ended and nobody else was first; clients and agents
  // reach its leader at `self`. Ends the transactions that the last leader has left open: stopped
  // in one, it could hold up others for ever.
  std::optional<int64_t> take(const View& seen, const std::string& self);
  // False: the epoch is over.
  bool renew(int64_t epoch);
  // Lets the lease end now.
  void release(int64_t epoch);

  // The certificate authority of the coordinators: `mine`, where there was none before. Empty:
  // none.
  std::string agree_on_authority(const std::string& mine);

  // Store::setting() of the store that they share; empty also where nobody has led yet.
  std::string setting(const std::string& name);

  absl::Duration lease() const { return lease_; }

 private:
  const absl::Duration lease_;
  const std::unique_ptr<Database> database_;
  bool is_there_ = false;  // the row
};

// Keeps the lease of an epoch, on a thread of its own.
class Leadership {
 public:
  // `asked` is when it was asked for, by boot_time(). `lost` is called once, from that thread, when
  // the lease has ended or is another's; it says why.
  Leadership(std::unique_ptr<Election> election, int64_t epoch, absl::Duration asked,
             std::function<void(const std::string&)> lost);
  ~Leadership();

  int64_t epoch() const { return epoch_; }

  // Throws DatabaseLost where the lease has ended by this machine's clock, and so may be another's.
  // What is answered after it was asked for before the lease ended: a heartbeat that arrived later,
  // as in a process that had been stopped, is never acknowledged. Thread safe.
  void check() const;

  // Stops to keep it and lets others take it. Afterwards nothing may be answered.
  void release();

 private:
  void keep();
  void set_end(absl::Duration asked);

  const std::unique_ptr<Election> election_;
  const int64_t epoch_;
  const std::function<void(const std::string&)> lost_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  absl::Duration end_;  // by boot_time()
  bool stopping_ = false;
  std::thread thread_;
};

// Time since this machine started, its sleep included.
absl::Duration boot_time();

}  // namespace tessera::server
