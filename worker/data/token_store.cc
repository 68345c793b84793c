#include "worker/data/token_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "worker/data/content_hash.h"

namespace tessera {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr const char* kFileNames[] = {"tokens", "masks", "offsets", "values"};
constexpr const char* kHeaderName = "header";

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

uint64_t hash_of(const TokenStoreHeader& header) {
  ContentHash hash;
  hash.update(&header, offsetof(TokenStoreHeader, hash));
  return hash.low64();
}

FileDescriptor create_file(const std::filesystem::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) fail("create " + path.string());
  return file;
}

FileDescriptor create_memory(const char* name) {
  FileDescriptor file(::memfd_create(name, MFD_CLOEXEC));
  if (!file.is_open()) fail("memfd_create");
  return file;
}

void sync(int fd, const std::filesystem::path& path) {
  if (::fsync(fd) != 0) fail("fsync " + path.string());
}

int64_t size_of(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) fail("fstat");
  return status.st_size;
}

// In the order of TokenFiles.
std::array<int64_t, 4> sizes_of(const TokenStoreHeader& header) {
  const int64_t words = (header.num_tokens + 63) / 64;
  return {header.num_tokens * 4, header.has_masks != 0 ? words * 8 : 0,
          (header.num_documents + 1) * 8, header.has_values != 0 ? header.num_documents * 4 : 0};
}

uint64_t hash_file(int fd) {
  ContentHash hash;
  std::vector<char> buffer(kBufferBytes);
  int64_t offset = 0;
  while (const size_t count = read_at(fd, buffer.data(), buffer.size(), offset)) {
    hash.update(buffer.data(), count);
    offset += static_cast<int64_t>(count);
  }
  return hash.low64();
}

uint64_t hash_emptied(int fd) {
  if (::ftruncate(fd, 0) != 0) fail("ftruncate");
  return hash_file(fd);
}

}  // namespace

// Buffered and hashed.
class TokenStoreWriter::Stream {
 public:
  explicit Stream(int fd) : fd_(fd) { buffer_.reserve(kBufferBytes); }

  void write(const void* data, size_t size) {
    const char* bytes = static_cast<const char*>(data);
    while (size > 0) {
      const size_t part = std::min(size, kBufferBytes - buffer_.size());
      buffer_.insert(buffer_.end(), bytes, bytes + part);
      bytes += part;
      size -= part;
      if (buffer_.size() == kBufferBytes) flush();
    }
  }

  uint64_t finish() {
    flush();
    return hash_.low64();
  }

 private:
  void flush() {
    hash_.update(buffer_.data(), buffer_.size());
    write_all(fd_, buffer_.data(), buffer_.size());
    buffer_.clear();
  }

  const int fd_;
  std::vector<char> buffer_;
  ContentHash hash_;
};

TokenStoreWriter::TokenStoreWriter(const std::filesystem::path& folder)
    : TokenStoreWriter({create_file(folder / kFileNames[0]), create_file(folder / kFileNames[1]),
                        create_file(folder / kFileNames[2]), create_file(folder / kFileNames[3])}) {
  folder_ = folder;
}

TokenStoreWriter::TokenStoreWriter()
    : TokenStoreWriter({create_memory(kFileNames[0]), create_memory(kFileNames[1]),
                        create_memory(kFileNames[2]), create_memory(kFileNames[3])}) {}

TokenStoreWriter::TokenStoreWriter(TokenFiles files)
    : files_(std::move(files)),
      tokens_(std::make_unique<Stream>(files_.tokens.get())),
      masks_(std::make_unique<Stream>(files_.masks.get())),
      offsets_(std::make_unique<Stream>(files_.offsets.get())),
      values_(std::make_unique<Stream>(files_.values.get())) {}

TokenStoreWriter::~TokenStoreWriter() = default;

void TokenStoreWriter::append(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask,
                              std::optional<float> value) {
  offsets_->write(&header_.num_tokens, sizeof header_.num_tokens);
  tokens_->write(tokens.data(), tokens.size_bytes());
  append_bits(loss_mask, tokens.size());
  const float number = value.value_or(0);
  values_->write(&number, sizeof number);
  if (value) header_.has_values = 1;
  header_.num_tokens += static_cast<int64_t>(tokens.size());
  ++header_.num_documents;
}

void TokenStoreWriter::append_bits(std::span<const uint8_t> loss_mask, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const bool counts = loss_mask.empty() || loss_mask[i] != 0;
    if (!counts) header_.has_masks = 1;
    const auto bit = static_cast<uint64_t>(header_.num_tokens + static_cast<int64_t>(i)) % 64;
    word_ |= uint64_t{counts} << bit;
    if (bit < 63) continue;
    masks_->write(&word_, sizeof word_);
    word_ = 0;
  }
}

void TokenStoreWriter::finish() {
  offsets_->write(&header_.num_tokens, sizeof header_.num_tokens);
  if (header_.num_tokens % 64 != 0) masks_->write(&word_, sizeof word_);
  header_.hashes = {tokens_->finish(), masks_->finish(), offsets_->finish(), values_->finish()};
  if (header_.has_masks == 0) header_.hashes[1] = hash_emptied(files_.masks.get());
  if (header_.has_values == 0) header_.hashes[3] = hash_emptied(files_.values.get());
  header_.hash = hash_of(header_);
  if (folder_.empty()) return;
  sync(files_.tokens.get(), folder_);
  sync(files_.masks.get(), folder_);
  sync(files_.offsets.get(), folder_);
  sync(files_.values.get(), folder_);
  const FileDescriptor header = create_file(folder_ / kHeaderName);
  write_all(header.get(), &header_, sizeof header_);
  sync(header.get(), folder_);
  const FileDescriptor folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) fail("open " + folder_.string());
  sync(folder.get(), folder_);
}

std::unique_ptr<TokenStore> TokenStore::open(const std::filesystem::path& folder,
                                             std::string& problem) {
  problem.clear();
  const auto open_file = [&](const char* name) {
    return FileDescriptor(::open((folder / name).c_str(), O_RDONLY | O_CLOEXEC));
  };
  const FileDescriptor header_file = open_file(kHeaderName);
  if (!header_file.is_open()) return nullptr;
  TokenStoreHeader header;
  const size_t size = read_at(header_file.get(), &header, sizeof header, 0);
  if (size != sizeof header || header.magic != TokenStoreHeader::kMagic ||
      header.hash != hash_of(header)) {
    problem = "its header is damaged";
    return nullptr;
  }
  const TokenFiles files{open_file(kFileNames[0]), open_file(kFileNames[1]),
                         open_file(kFileNames[2]), open_file(kFileNames[3])};
  const std::array<int, 4> fds = {files.tokens.get(), files.masks.get(), files.offsets.get(),
                                  files.values.get()};
  const auto sizes = sizes_of(header);
  for (size_t i = 0; i < fds.size(); ++i) {
    if (fds[i] >= 0 && size_of(fds[i]) == sizes[i] && hash_file(fds[i]) == header.hashes[i]) {
      continue;
    }
    problem = std::string("its file \"") + kFileNames[i] + "\" is damaged";
    return nullptr;
  }
  return std::unique_ptr<TokenStore>(new TokenStore(header, files));
}

TokenStore::TokenStore(TokenStoreWriter& writer) : TokenStore(writer.header_, writer.files_) {}

TokenStore::TokenStore(const TokenStoreHeader& header, const TokenFiles& files)
    : header_(header),
      tokens_(files.tokens.get(), sizes_of(header)[0]),
      masks_(files.masks.get(), sizes_of(header)[1]),
      offsets_(files.offsets.get(), sizes_of(header)[2]),
      values_(files.values.get(), sizes_of(header)[3]) {}

int64_t TokenStore::offset(int64_t document) const {
  int64_t value;
  std::memcpy(&value, offsets_.at(document * 8, 8), 8);
  return value;
}

int64_t TokenStore::length(int64_t document) const {
  int64_t ends[2];
  std::memcpy(ends, offsets_.at(document * 8, 16), 16);
  return ends[1] - ends[0];
}

void TokenStore::append_tokens(int64_t document, int64_t begin, int64_t length,
                               std::vector<int32_t>& out) const {
  if (length == 0) return;
  const size_t size = out.size();
  out.resize(size + static_cast<size_t>(length));
  std::memcpy(out.data() + size, tokens_.at((offset(document) + begin) * 4, length * 4),
              static_cast<size_t>(length) * 4);
}

void TokenStore::append_mask(int64_t document, int64_t begin, int64_t length,
                             std::vector<uint8_t>& out) const {
  if (!has_masks()) {
    out.insert(out.end(), static_cast<size_t>(length), 1);
    return;
  }
  if (length == 0) return;
  const int64_t first = offset(document) + begin;
  const std::byte* bytes = masks_.at(first / 8, (first + length + 7) / 8 - first / 8);
  for (int64_t i = first % 8; i < first % 8 + length; ++i) {
    out.push_back(static_cast<uint8_t>(bytes[i / 8] >> i % 8 & std::byte{1}));
  }
}

int64_t TokenStore::count(int64_t document, int64_t begin, int64_t length) const {
  if (!has_masks()) return length;
  if (length == 0) return 0;
  const int64_t first = offset(document) + begin;
  const std::byte* bytes = masks_.at(first / 8, (first + length + 7) / 8 - first / 8);
  int64_t total = 0;
  for (int64_t i = first % 8; i < first % 8 + length;) {
    const int64_t end = std::min(first % 8 + length, (i / 8 + 1) * 8);
    const auto kept = static_cast<uint8_t>(0xFF >> (8 - (end - i)) << i % 8);
    total += std::popcount(static_cast<uint8_t>(static_cast<uint8_t>(bytes[i / 8]) & kept));
    i = end;
  }
  return total;
}

int64_t TokenStore::first_counted(int64_t document) const {
  const int64_t size = length(document);
  if (!has_masks() || size == 0) return 0;
  const int64_t first = offset(document);
  const std::byte* bytes = masks_.at(first / 8, (first + size + 7) / 8 - first / 8);
  for (int64_t i = first % 8; i < first % 8 + size;) {
    const auto rest = static_cast<uint8_t>(static_cast<uint8_t>(bytes[i / 8]) >> i % 8);
    if (rest != 0) return std::min(size, i + std::countr_zero(rest) - first % 8);
    i = (i / 8 + 1) * 8;
  }
  return size;
}

float TokenStore::value(int64_t document) const {
  if (!has_values()) return 0;
  float value;
  std::memcpy(&value, values_.at(document * 4, 4), 4);
  return value;
}

}  // namespace tessera
