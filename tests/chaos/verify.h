// The books at the end: everything that the coordinator holds beside the journal.
#pragma once

#include <cstdint>
#include <string>

#include "client/cpp/client.h"
#include "tests/chaos/journal.h"

namespace tessera::chaos {

struct Verified {
  int64_t num_jobs = 0;
  int64_t num_events = 0;
  int64_t num_succeeded = 0;
  int64_t num_cancelled = 0;
};

// Notes in the journal, for all jobs: one that was acknowledged and is not there, or is there and
// was not acknowledged; an end that is none of the user's wishes; a SUCCEEDED one that did not run
// to its end exactly once; events whose revisions do not grow, states that do not follow from each
// other, an event after the last, steps of an attempt that are lost, repeated or out of order.
// Requires: every job has ended, and every submit was answered.
Verified verify(Client& client, Journal& journal);

// Notes what SQLite finds wrong with the database. Requires: nobody writes to it.
void verify_database(const std::string& path, Journal& journal);

}  // namespace tessera::chaos
