// The area of a process: memory of its own, in slots, that the other processes of the machine map
// and only read. A segment within the machine then travels as the place of its bytes (a slot and
// its generation) in place of the bytes. Like the rings (shared_memory.h) an area has no name: its
// descriptor is passed over a unix socket (shared_stream.h). An area cannot shrink, and a forked
// child does not have it.
//
// The memory: a header with a generation (u64) for each slot, then the slots. The generation of a
// slot grows by one before the slot is written anew, so a reader that finds the same generation
// before and after its reading has read what the place means (a sequence lock; the order of the
// steps is that of H.-J. Boehm, "Can seqlocks get along with programming language memory models?",
// 2012).
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "transport/transport.h"

namespace pccl {

/// In front of the slots: a page, also where pages are large.
inline constexpr std::size_t kAreaHeaderBytes = 64U << 10;
inline constexpr std::size_t kAreaBytes = kAreaHeaderBytes + kAreaSlots * kAreaSlotBytes;

/// An area where this process has mapped it. In a forked child, where something else may lie at its
/// addresses, the destructor unmaps nothing.
class AreaMapping {
 public:
  AreaMapping() = default;  // nothing
  /// `protection`: of mmap. Errors: the area cannot be mapped.
  [[nodiscard]] static Result<AreaMapping> make(int descriptor, int protection);
  AreaMapping(AreaMapping&& other) noexcept { swap(other); }
  AreaMapping& operator=(AreaMapping&& other) noexcept {
    AreaMapping moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~AreaMapping();

  [[nodiscard]] std::byte* begin() const { return begin_; }
  [[nodiscard]] std::byte* slot(std::uint32_t index) const {
    return begin_ + kAreaHeaderBytes + index * kAreaSlotBytes;
  }
  /// Is this the process that has mapped it?
  [[nodiscard]] bool is_here() const;

 private:
  void swap(AreaMapping& other) noexcept {
    std::swap(begin_, other.begin_);
    std::swap(process_, other.process_);
  }

  std::byte* begin_ = nullptr;
  int process_ = 0;  // that has the mapping
};

/// The area of this process. The area and its parts are used on the engine's thread alone, which
/// runs the loop.
class OwnArea : public std::enable_shared_from_this<OwnArea> {
 public:
  /// Without slots that hold memory: the system gives a slot its memory when the slot is first
  /// taken. Errors: the system has no such memory, or none left.
  [[nodiscard]] static Result<std::shared_ptr<OwnArea>> make();
  ~OwnArea();
  OwnArea(const OwnArea&) = delete;
  OwnArea& operator=(const OwnArea&) = delete;

  /// To be passed on; stays the area's. In a forked child whoever keeps the registry of descriptors
  /// closes it (fd_registry.h), and the destructor does not.
  [[nodiscard]] int descriptor() const { return descriptor_; }

  class Part;
  /// So many slots in a row, at the lowest place where as many are free: memory that is in the
  /// caches is used again. Their generations have been raised, and the bytes in them are old.
  /// Nothing: so many in a row are not free, or the system has no memory for them.
  [[nodiscard]] std::optional<Part> take(std::uint32_t slots);
  /// The place of the slot that begins at this address; nothing: no taken slot of this area begins
  /// there.
  [[nodiscard]] std::optional<AreaPlace> place_of(const std::byte* at) const;

 private:
  OwnArea(int descriptor, AreaMapping mapping)
      : descriptor_(descriptor), mapping_(std::move(mapping)) {}
  void give_back(std::uint32_t first, std::uint32_t slots);
  /// Has the system memory for these slots?
  [[nodiscard]] bool back(std::uint32_t first, std::uint32_t slots);

  int descriptor_;
  AreaMapping mapping_;
  std::bitset<kAreaSlots> taken_;
  std::bitset<kAreaSlots> backed_;
  std::array<std::uint64_t, kAreaSlots> generations_{};  // believed; the header shows them
};

/// The slots of one operation, one behind the other. The destructor gives them back; the part keeps
/// the area's memory until then.
class OwnArea::Part {
 public:
  Part(Part&& other) noexcept { swap(other); }
  Part& operator=(Part&& other) noexcept {
    Part moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Part() {
    if (area_) area_->give_back(first_, slots_);
  }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint32_t slots() const { return slots_; }

 private:
  friend class OwnArea;
  Part(std::shared_ptr<OwnArea> area, std::uint32_t first, std::uint32_t slots, std::byte* data)
      : area_(std::move(area)), first_(first), slots_(slots), data_(data) {}
  void swap(Part& other) noexcept {
    std::swap(area_, other.area_);
    std::swap(first_, other.first_);
    std::swap(slots_, other.slots_);
    std::swap(data_, other.data_);
  }

  std::shared_ptr<OwnArea> area_;  // null: moved away
  std::uint32_t first_ = 0;
  std::uint32_t slots_ = 0;
  std::byte* data_ = nullptr;
};

/// The area of another process of this machine, which this process only reads. The other process
/// may write it at any moment. Used on any thread.
class PeerArea {
 public:
  /// Takes the area of this descriptor, which comes from another process; the descriptor stays the
  /// caller's. Errors: the descriptor is not of a sealed memory of an area's size (malformed), or
  /// the memory cannot be mapped (unreachable).
  [[nodiscard]] static Result<std::shared_ptr<const PeerArea>> take(int descriptor);
  PeerArea(const PeerArea&) = delete;
  PeerArea& operator=(const PeerArea&) = delete;

  /// The bytes of a slot; null: there is no such slot.
  [[nodiscard]] const std::byte* at(std::uint32_t slot) const;
  /// Does the slot still have this generation? To be asked before the bytes are read, and again
  /// afterwards: a no means that what was read is of something else.
  [[nodiscard]] bool holds(const AreaPlace& place) const;

 private:
  explicit PeerArea(AreaMapping mapping) : mapping_(std::move(mapping)) {}

  AreaMapping mapping_;
};

}  // namespace pccl
