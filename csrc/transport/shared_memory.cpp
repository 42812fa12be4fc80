#include "transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <new>

#include "transport/sealed_memory.h"

namespace pccl {
namespace {

// In front of the rings: a page, also where pages are large.
constexpr std::size_t kHeaderBytes = 64U << 10;
static_assert(kHeaderBytes >= 2 * sizeof(RingHeader));
static_assert(kRingBytesMin % kHeaderBytes == 0);

std::size_t bytes_of_rings(std::size_t ring_bytes) { return kHeaderBytes + 2 * ring_bytes; }

std::byte* map_part(void* at, int descriptor, std::size_t offset, std::size_t bytes) {
  const int where = at == nullptr ? 0 : MAP_FIXED;
  void* const mapped = ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | where, descriptor,
                              static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

/// The same bytes twice, one behind the other.
std::byte* map_twice(int descriptor, std::size_t offset, std::size_t bytes) {
  void* const reserved =
      ::mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(reserved);
  if (map_part(first, descriptor, offset, bytes) != nullptr &&
      map_part(first + bytes, descriptor, offset, bytes) != nullptr &&
      ::madvise(first, 2 * bytes, MADV_DONTFORK) == 0) {
    return first;
  }
  const int error = errno;
  ::munmap(first, 2 * bytes);
  errno = error;
  return nullptr;
}

}  // namespace

bool is_ring_size(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kRingBytesMin && bytes <= kRingBytesMax;
}

Result<SharedMemory> SharedMemory::make(std::size_t ring_bytes) {
  if (!is_ring_size(ring_bytes)) return {ErrorCode::invalid, "no ring has this size"};
  SharedMemory made;
  made.descriptor_ = ::memfd_create("pccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made.descriptor_ < 0) return memory_error("no shared memory");
  if (!allocate_memory(made.descriptor_, 0, bytes_of_rings(ring_bytes)) ||
      ::fcntl(made.descriptor_, F_ADD_SEALS, kMemorySeals) != 0) {
    return memory_error("no shared memory");
  }
  if (Error error = made.map(made.descriptor_, ring_bytes, Side::maker); error.failed()) {
    return error;
  }
  return made;
}

Result<SharedMemory> SharedMemory::take(int descriptor, std::size_t ring_bytes) {
  if (!is_ring_size(ring_bytes) || !is_sealed_memory(descriptor, bytes_of_rings(ring_bytes)) ||
      (::fcntl(descriptor, F_GET_SEALS) & F_SEAL_WRITE) != 0) {
    return {ErrorCode::malformed, "what it passes is not a sealed memory of two rings"};
  }
  SharedMemory taken;
  if (Error error = taken.map(descriptor, ring_bytes, Side::taker); error.failed()) return error;
  return taken;
}

Error SharedMemory::map(int descriptor, std::size_t ring_bytes, Side side) {
  side_ = side;
  ring_bytes_ = ring_bytes;
  headers_ = map_part(nullptr, descriptor, 0, kHeaderBytes);
  if (headers_ == nullptr || ::madvise(headers_, kHeaderBytes, MADV_DONTFORK) != 0) {
    return memory_error("shared memory cannot be mapped");
  }
  for (std::size_t i = 0; i < 2; ++i) {
    rings_[i] = map_twice(descriptor, kHeaderBytes + i * ring_bytes, ring_bytes);
    if (rings_[i] == nullptr) return memory_error("shared memory cannot be mapped");
  }
  // New memory is zero: nothing written, nothing read. The maker has the first word.
  if (side == Side::maker) {
    for (std::size_t i = 0; i < 2; ++i) new (headers_ + i * sizeof(RingHeader)) RingHeader{};
  }
  return {};
}

SharedMemory::~SharedMemory() {
  close_descriptor();
  if (headers_ != nullptr) ::munmap(headers_, kHeaderBytes);
  for (std::byte* ring : rings_) {
    if (ring != nullptr) ::munmap(ring, 2 * ring_bytes_);
  }
}

void SharedMemory::close_descriptor() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

void SharedMemory::forget() {
  headers_ = nullptr;
  for (std::byte*& ring : rings_) ring = nullptr;
}

RingWriter SharedMemory::writer() const {
  const std::size_t own = side_ == Side::maker ? 0 : 1;
  return {reinterpret_cast<RingHeader*>(headers_)[own], rings_[own], ring_bytes_};
}

RingReader SharedMemory::reader() const {
  const std::size_t other = side_ == Side::maker ? 1 : 0;
  return {reinterpret_cast<RingHeader*>(headers_)[other], rings_[other], ring_bytes_};
}

void SharedMemory::swap(SharedMemory& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(side_, other.side_);
  std::swap(ring_bytes_, other.ring_bytes_);
  std::swap(headers_, other.headers_);
  std::swap(rings_, other.rings_);
}

}  // namespace pccl
