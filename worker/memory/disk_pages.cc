#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "proto/spec/bytes.h"
#include "worker/errors.h"
#include "worker/kernels/stand_in.h"
#include "worker/memory/host_memory.h"
#include "worker/memory/offload_pages.h"

namespace tessera {
namespace {

constexpr const char* kField = "memory.activation_offloading_dir";

// A file that is gone from its directory, and so from the disk once it is closed.
class NamelessFile {
 public:
  explicit NamelessFile(const std::filesystem::path& directory) : directory_(directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    std::string path = (directory / "activations-XXXXXX").string();
    fd_ = error ? -1 : ::mkostemp(path.data(), O_CLOEXEC);
    if (fd_ < 0) {
      const std::string why = error ? error.message() : std::generic_category().message(errno);
      throw UserError(kField, std::string(kField) + " is " + directory.string() +
                                  ", must be a directory that can be written to: " + why);
    }
    ::unlink(path.c_str());
  }
  ~NamelessFile() { ::close(fd_); }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  // Blocks are reserved here, so that a full disk shows now and not at some write later.
  void reserve(int64_t begin, int64_t bytes) {
    const int error = ::posix_fallocate(fd_, begin, bytes);
    if (error == 0) return;
    throw UserError(kField, std::string(kField) + " is " + directory_.string() +
                                ", must have room for " + spec::format_bytes(begin + bytes) +
                                " of activations: " + std::generic_category().message(error));
  }

  void write(const void* data, int64_t bytes, int64_t offset) {
    each_part(bytes, [&](int64_t done) {
      return ::pwrite(fd_, static_cast<const char*>(data) + done, static_cast<size_t>(bytes - done),
                      offset + done);
    });
  }
  void read(void* data, int64_t bytes, int64_t offset) {
    each_part(bytes, [&](int64_t done) {
      return ::pread(fd_, static_cast<char*>(data) + done, static_cast<size_t>(bytes - done),
                     offset + done);
    });
  }
  // Only advice: what it returns changes nothing.
  void will_read(int64_t offset, int64_t bytes) {
    ::posix_fadvise(fd_, offset, bytes, POSIX_FADV_WILLNEED);
  }

 private:
  template <typename Call>
  void each_part(int64_t bytes, const Call& call) {
    for (int64_t done = 0; done < bytes;) {
      const ssize_t count = call(done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        throw std::system_error(count < 0 ? errno : EIO, std::generic_category(),
                                "activations in '" + directory_.string() + "'");
      }
      done += count;
    }
  }

  std::filesystem::path directory_;
  int fd_ = -1;
};

// A page in host memory, where that is not the device's; else undefined.
at::Tensor staging_page(at::Device device) {
  if (on_cpu(device)) return {};
  const OwnerScope scope(Owner::kActivations);
  return empty_host({kOffloadPageBytes}, at::kByte, device);
}

class DiskPages final : public OffloadPages {
 public:
  DiskPages(at::Device device, const std::filesystem::path& directory)
      : file_(directory), staged_(staging_page(device)) {}

  void grow() override { file_.reserve(num_pages_++ * kOffloadPageBytes, kOffloadPageBytes); }

  void write(int64_t page, int64_t offset, const at::Tensor& part) override {
    const at::Tensor source = staged_.defined() ? staged_.narrow(0, 0, part.numel()) : part;
    if (staged_.defined()) source.copy_(part);
    file_.write(source.const_data_ptr(), part.numel(), page * kOffloadPageBytes + offset);
  }

  void read(const at::Tensor& part, int64_t page, int64_t offset) override {
    const at::Tensor target = staged_.defined() ? staged_.narrow(0, 0, part.numel()) : part;
    file_.read(target.mutable_data_ptr(), part.numel(), page * kOffloadPageBytes + offset);
    if (staged_.defined()) part.copy_(target);
  }

  void will_read(int64_t page, int64_t offset, int64_t bytes) override {
    file_.will_read(page * kOffloadPageBytes + offset, bytes);
  }

 private:
  NamelessFile file_;
  at::Tensor staged_;
  int64_t num_pages_ = 0;
};

// A rehearsal's: nothing is written.
class NoPages final : public OffloadPages {
 public:
  explicit NoPages(at::Device device) : staged_(staging_page(device)) {}
  void grow() override {}
  void write(int64_t, int64_t, const at::Tensor& part) override { stage(part); }
  void read(const at::Tensor& part, int64_t, int64_t) override { stage(part); }
  void will_read(int64_t, int64_t, int64_t) override {}

 private:
  // Either way.
  void stage(const at::Tensor& part) {
    if (staged_.defined()) copy_across(staged_.narrow(0, 0, part.numel()), part);
  }

  at::Tensor staged_;
};

}  // namespace

std::unique_ptr<OffloadPages> make_disk_pages(at::Device device,
                                              const std::filesystem::path& directory) {
  if (device.is_meta()) return std::make_unique<NoPages>(device);
  return std::make_unique<DiskPages>(device, directory);
}

}  // namespace tessera
