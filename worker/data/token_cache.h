// Tokenised documents that jobs on this machine share, in a directory:
//
//   tokens/KEY/       whole entries (token_store.h); its time says when it was used last
//   tokens/KEY.part/  one that is being made, or was when its maker was killed
//   locks/KEY         held by the maker of KEY, and by nobody after its death
//   hashes/           of files' contents, as long as size and time of the file stay
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "worker/data/dataset.h"
#include "worker/data/record_reader.h"
#include "worker/data/token_store.h"

namespace tessera {

class TokenCache {
 public:
  // Makes the directory. Throws UserError("data.cache_dir"): it cannot be written.
  TokenCache(CacheOptions options, const Reports& reports);

  // The entry under `key`: letters and digits. Null where there is none, or a damaged one.
  std::unique_ptr<TokenStore> find(const std::string& key);
  // The same. Where there is none, or a damaged one, `make` writes
  // it; of several processes that want it one makes it and the others wait. Throws UserError when
  // the disk is full, and what `make` throws.
  std::unique_ptr<TokenStore> get(const std::string& key,
                                  const std::function<void(TokenStoreWriter&)>& make);

  // A hash of the file's contents, remembered while its size, inode and times stay as they are.
  // Throws UserError where it cannot be read.
  std::string content_hash(const RecordFile& file);

 private:
  std::unique_ptr<TokenStore> make_entry(const std::string& key,
                                         const std::function<void(TokenStoreWriter&)>& make);
  void evict(const std::string& newest);

  const CacheOptions options_;
  const Reports reports_;
};

}  // namespace tessera
