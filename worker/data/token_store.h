// Tokenised documents in files: as large as the disk, and nearly nothing of it in memory.
//
//   tokens   int32, of all documents one after the other
//   masks    bits, least significant first, one a token: 1 where predicting it counts
//   offsets  int64: where in `tokens` each document begins, and where the last one ends
//   values   float32, one a document
//   header   counts, and a hash of each file
//
// A record is one document, or several that stand one after the other.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/data/file_descriptor.h"
#include "worker/data/paged_mapping.h"

namespace tessera {

struct TokenStoreHeader {
  static constexpr std::array<char, 8> kMagic = {'T', 'S', 'R', 'A', 'T', 'O', 'K', '2'};

  std::array<char, 8> magic = kMagic;
  int64_t num_documents = 0;
  int64_t num_tokens = 0;
  int64_t has_masks = 0;   // 0: all tokens count
  int64_t has_values = 0;  // 0: no document has one
  int64_t documents_per_record = 1;
  std::array<uint64_t, 4> hashes{};  // of tokens, masks, offsets, values
  uint64_t hash = 0;                 // of what stands before it
};

// In the order of `hashes`.
struct TokenFiles {
  FileDescriptor tokens, masks, offsets, values;
};

// Writes documents as they come; holds only small buffers.
class TokenStoreWriter {
 public:
  // Into new files of the folder, which exists. Throws std::system_error throughout.
  explicit TokenStoreWriter(const std::filesystem::path& folder);
  // Into memory.
  TokenStoreWriter();
  ~TokenStoreWriter();

  // Every record has as many documents; 1 unless it is said here, before the first.
  void set_documents_per_record(int count) { header_.documents_per_record = count; }
  // An empty mask means that all tokens count; no value is 0 where other documents have one.
  void append(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask,
              std::optional<float> value = {});
  int64_t num_documents() const { return header_.num_documents; }
  int64_t num_tokens() const { return header_.num_tokens; }
  // To be called once, last. What was written into a folder is durable then.
  void finish();

 private:
  friend class TokenStore;
  class Stream;

  explicit TokenStoreWriter(TokenFiles files);
  void append_bits(std::span<const uint8_t> loss_mask, size_t count);

  std::filesystem::path folder_;  // empty: in memory
  TokenFiles files_;
  std::unique_ptr<Stream> tokens_, masks_, offsets_, values_;
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
  int64_t documents_per_record() const { return header_.documents_per_record; }
  int64_t num_tokens() const { return header_.num_tokens; }
  bool has_masks() const { return header_.has_masks != 0; }
  bool has_values() const { return header_.has_values != 0; }
  int64_t length(int64_t document) const;  // in tokens
  void append_tokens(int64_t document, int64_t begin, int64_t length,
                     std::vector<int32_t>& out) const;
  void append_mask(int64_t document, int64_t begin, int64_t length,
                   std::vector<uint8_t>& out) const;
  // Tokens in a range that count.
  int64_t count(int64_t document, int64_t begin, int64_t length) const;
  // The document's first token that counts; length(document) where none does.
  int64_t first_counted(int64_t document) const;
  float value(int64_t document) const;  // 0 where documents have none

 private:
  TokenStore(const TokenStoreHeader& header, const TokenFiles& files);
  int64_t offset(int64_t document) const;

  TokenStoreHeader header_;
  PagedMapping tokens_, masks_, offsets_, values_;
};

}  // namespace tessera
