// Control over a store whose disk may fail: full, or with errors of input and output.
//
// A round that cannot be written leaves memory ahead of the disk. Its transaction is undone, nobody
// is told of it, and an outage begins: no change is taken (Control::begin_outage), readers go on
// with what is stored, and heartbeats of agents are answered, so that their ranks go on for however
// long it lasts. The disk is tried every kRetryInterval. Once it takes a write, Control is made
// anew from what is stored, as a restart of the process would, and agents come again and send what
// was never acknowledged.
//
// Heartbeats may be answered because no other coordinator can have the store meanwhile: the next
// one, this process's or not, gives every node a whole fence period to come back.
//
// Belongs to the control loop's thread, once that has started.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/agents/control.h"
#include "server/jobs/store.h"

namespace tessera::server {

class LastingControl {
 public:
  static constexpr absl::Duration kRetryInterval = absl::Seconds(1);

  using OpenStore = std::function<absl::StatusOr<std::unique_ptr<Store>>()>;
  // Makes the control, in place.
  using Make = std::function<void(std::optional<Control>&, Store&)>;

  // `store` is open; `reopen` gives one again that can be written. It may throw DatabaseError.
  LastingControl(std::unique_ptr<Store> store, OpenStore reopen, Make make, const Clock& clock);

  // The same object for as long as this lives, whatever is made anew.
  Control& control() { return *control_; }

  // ControlLoop's OnFailure: begins an outage, or goes on with one. False: no DatabaseLost, or not
  // with a control that could wait.
  bool failed(const std::exception& failure);
  // Control's, or tries to end the outage. Throws what making the control anew throws.
  void tick();

 private:
  // The store, opened anew, if it can be written.
  absl::StatusOr<std::unique_ptr<Store>> try_disk();

  std::unique_ptr<Store> store_;
  const OpenStore reopen_;
  const Make make_;
  const Clock& clock_;
  std::optional<Control> control_;
  absl::Duration outage_begin_;
  absl::Duration next_try_;
};

}  // namespace tessera::server
