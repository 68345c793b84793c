// Tokenised documents in files: as large as the disk, and nearly nothing of it in memory.
//
//   tokens   int32, of all documents one after the other
//   masks    bits, least significant first, one a token: 1 where predicting it counts
//   offsets  int64: where in `tokens` each document begins, and where the last one ends
//   header   counts, and a hash of each file
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker/data/file_descriptor.h"
#include "worker/data/paged_mapping.h"

namespace tessera {

struct TokenStoreHeader {
  static constexpr std::array<char, 8> kMagic = {'T', 'S', 'R', 'A', 'T', 'O', 'K', '1'};

  std::array<char, 8> magic = kMagic;
  int64_t num_documents = 0;
  int64_t num_tokens = 0;
  int64_t has_masks = 0;             // 0: all tokens count
  std::array<uint64_t, 3> hashes{};  // of tokens, masks, offsets
  uint64_t hash = 0;                 // of what stands before it
};

// In the order of `hashes`.
struct TokenFiles {
  FileDescriptor tokens, masks, offsets;
};

// Writes documents as they come; holds only small buffers.
class TokenStoreWriter {
 public:
  // Into new files of the folder, which exists. Throws std::system_error throughout.
  explicit TokenStoreWriter(const std::filesystem::path& folder);
  // Into memory.
  TokenStoreWriter();
  ~TokenStoreWriter();

  // An empty mask means that all tokens count.
  void append(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask);
  int64_t num_documents() const { return header_.num_documents; }
  int64_t num_tokens() const { return header_.num_tokens; }
  // To be called once, last. What was written into a folder is durable then.
  void finish();

 private:
  friend class TokenStore;
  class Stream;

  void append_bits(std::span<const uint8_t> loss_mask, size_t count);

  std::filesystem::path folder_;  // empty: in memory
  TokenFiles files_;
  std::unique_ptr<Stream> tokens_, masks_, offsets_;
  TokenStoreHeader header_;
  uint64_t word_ = 0;  // bits that do not fill a word yet
};

// Immutable and thread safe. Requires 0 <= document < size(), and ranges within the document.
class TokenStore {
 public:
  // What was written into a folder. Reads all of it once, to compare the hashes. Null where it is
  // not whole; `problem` says why, and is empty where there is nothing at all.
  static std::unique_ptr<TokenStore> open(const std::filesystem::path& folder,
                                          std::string& problem);
  // What a finished writer wrote into memory.
  explicit TokenStore(TokenStoreWriter& writer);

  int64_t size() const { return header_.num_documents; }
  int64_t num_tokens() const { return header_.num_tokens; }
  bool has_masks() const { return header_.has_masks != 0; }
  int64_t length(int64_t document) const;  // in tokens
  void append_tokens(int64_t document, int64_t begin, int64_t length,
                     std::vector<int32_t>& out) const;
  void append_mask(int64_t document, int64_t begin, int64_t length,
                   std::vector<uint8_t>& out) const;
  // Tokens in a range that count.
  int64_t count(int64_t document, int64_t begin, int64_t length) const;

 private:
  TokenStore(const TokenStoreHeader& header, const TokenFiles& files);
  int64_t offset(int64_t document) const;

  TokenStoreHeader header_;
  PagedMapping tokens_, masks_, offsets_;
};

}  // namespace tessera
