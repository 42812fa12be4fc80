#include "transport/area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "transport/sealed_memory.h"

// ThreadSanitizer does not know fences: what it would miss lies in another process.
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

namespace pccl {
namespace {

using Generation = std::atomic<std::uint64_t>;
static_assert(Generation::is_always_lock_free);
static_assert(kAreaHeaderBytes >= kAreaSlots * sizeof(Generation));
#ifdef F_SEAL_FUTURE_WRITE
constexpr int kNoOtherWriter = F_SEAL_FUTURE_WRITE;
#else
constexpr int kNoOtherWriter = 0x0010;  // since Linux 5.1
#endif

Generation& generation_at(std::byte* begin, std::uint32_t slot) {
  return reinterpret_cast<Generation*>(begin)[slot];
}

}  // namespace

// ---------------------------------------------------------------------------------- the mapping

Result<AreaMapping> AreaMapping::make(int descriptor, int protection) {
  void* const mapped = ::mmap(nullptr, kAreaBytes, protection, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) return memory_error("shared memory cannot be mapped");
  AreaMapping mapping;
  mapping.begin_ = static_cast<std::byte*>(mapped);
  mapping.process_ = ::getpid();
  if (::madvise(mapped, kAreaBytes, MADV_DONTFORK) != 0) {
    return memory_error("shared memory cannot be mapped");
  }
  return mapping;
}

AreaMapping::~AreaMapping() {
  if (begin_ != nullptr && is_here()) ::munmap(begin_, kAreaBytes);
}

bool AreaMapping::is_here() const { return process_ == ::getpid(); }

// ---------------------------------------------------------------------------------- the own area

Result<std::shared_ptr<OwnArea>> OwnArea::make() {
  const int descriptor = ::memfd_create("pccl area", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return memory_error("no shared memory");
  // The header has its pages at once: readers look at the generations of slots without memory too.
  const bool sealed = ::ftruncate(descriptor, static_cast<off_t>(kAreaBytes)) == 0 &&
                      allocate_memory(descriptor, 0, kAreaHeaderBytes) &&
                      ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  auto mapping = sealed ? AreaMapping::make(descriptor, PROT_READ | PROT_WRITE)
                        : Result<AreaMapping>(memory_error("no shared memory"));
  // From now on nobody maps it to write. A kernel that cannot forbid it trusts its user's
  // processes.
  if (mapping && ::fcntl(descriptor, F_ADD_SEALS, kNoOtherWriter | F_SEAL_SEAL) != 0 &&
      ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SEAL) != 0) {
    mapping = memory_error("no shared memory");
  }
  if (!mapping) {
    ::close(descriptor);
    return mapping.error();
  }
  const std::shared_ptr<OwnArea> area(new OwnArea(descriptor, std::move(mapping).value()));
  for (std::uint32_t slot = 0; slot < kAreaSlots; ++slot) {
    new (area->mapping_.begin() + slot * sizeof(Generation)) Generation{0};
  }
  return area;
}

OwnArea::~OwnArea() {
  if (mapping_.is_here()) ::close(descriptor_);
}

std::optional<OwnArea::Part> OwnArea::take(std::uint32_t slots) {
  if (slots == 0) return {};
  std::uint32_t end = 0;  // of the run
  for (std::uint32_t free = 0; free < slots; ++end) {
    if (end == kAreaSlots) return {};
    free = taken_[end] ? 0 : free + 1;
  }
  const std::uint32_t first = end - slots;
  if (!back(first, slots)) return {};
  for (std::uint32_t slot = first; slot < end; ++slot) {
    taken_[slot] = true;
    generation_at(mapping_.begin(), slot).store(++generations_[slot], std::memory_order_relaxed);
  }
  // A reader that sees a byte written after this sees the new generation too.
  std::atomic_thread_fence(std::memory_order_release);
  return Part(shared_from_this(), first, slots, mapping_.slot(first));
}

bool OwnArea::back(std::uint32_t first, std::uint32_t slots) {
  for (std::uint32_t slot = first; slot < first + slots; ++slot) {
    if (backed_[slot]) continue;
    if (!allocate_memory(descriptor_, kAreaHeaderBytes + slot * kAreaSlotBytes, kAreaSlotBytes)) {
      return false;
    }
    backed_[slot] = true;
  }
  return true;
}

void OwnArea::give_back(std::uint32_t first, std::uint32_t slots) {
  for (std::uint32_t slot = first; slot < first + slots; ++slot) taken_[slot] = false;
}

std::optional<AreaPlace> OwnArea::place_of(const std::byte* at) const {
  const auto offset =
      reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(mapping_.slot(0));
  const std::uintptr_t slot = offset / kAreaSlotBytes;  // of an address before the slots: large
  if (offset % kAreaSlotBytes != 0 || slot >= kAreaSlots || !taken_[slot]) return {};
  return AreaPlace{static_cast<std::uint32_t>(slot), generations_[slot]};
}

// ---------------------------------------------------------------------------------- another area

Result<std::shared_ptr<const PeerArea>> PeerArea::take(int descriptor) {
  if (!is_sealed_memory(descriptor, kAreaBytes)) {
    return {ErrorCode::malformed, "what it passes is not a sealed memory of an area"};
  }
  auto mapping = AreaMapping::make(descriptor, PROT_READ);
  if (!mapping) return mapping.error();
  return std::shared_ptr<const PeerArea>(new PeerArea(std::move(mapping).value()));
}

const std::byte* PeerArea::at(std::uint32_t slot) const {
  return slot < kAreaSlots ? mapping_.slot(slot) : nullptr;
}

bool PeerArea::holds(const AreaPlace& place) const {
  if (place.slot >= kAreaSlots || place.generation == 0) return false;
  // After the reading: the bytes are read before the generation. Before it: the other way round.
  std::atomic_thread_fence(std::memory_order_acquire);
  return generation_at(mapping_.begin(), place.slot).load(std::memory_order_acquire) ==
         place.generation;
}

}  // namespace pccl
