// Fetches a shared state into memory beside the caller's, item by item in the order of the plan
// (plan.h). An item is kept when its digest is right. When all items are here, `replace` exchanges
// them with the caller's memory; if an error follows, `take_back` exchanges them back. Pure: the
// caller gives the functions that pull and hash. If such a function throws (Ctrl-C), the caller's
// memory and the items that are here stay as they are. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "state/plan.h"

namespace pccl {

class StateFetch {
 public:
  /// Memory for one item, with undefined contents until a pull has filled it.
  class Memory {
   public:
    Memory() = default;
    /// Throws std::bad_alloc.
    explicit Memory(std::uint64_t bytes)
        : data_(std::make_unique_for_overwrite<std::byte[]>(bytes)), bytes_(bytes) {}
    explicit Memory(std::span<const std::byte> copied);
    [[nodiscard]] std::span<std::byte> span() const { return {data_.get(), bytes_}; }

   private:
    std::unique_ptr<std::byte[]> data_;
    std::uint64_t bytes_ = 0;
  };

  /// Fills `to` with an item; makes the memory first, if the size was not known.
  using PullInto = std::function<Error(const TransferPlan::Pull& pull, Memory& to)>;
  /// The digest of an item; for item 0, the manifest, its plain SHA-256.
  using Hash = std::function<Digest(std::span<const std::byte>)>;
  struct Target {
    Digest digest{};
    std::span<std::byte> memory;
  };

  /// Pulls the items that are missing. True: all wanted items are here, checked. False: no source
  /// is left. Items that came before a failure or an exception stay for the next call.
  [[nodiscard]] Result<bool> run(std::vector<WantedItem> wanted, std::vector<PeerId> sources,
                                 const PullInto& pull, const Hash& hash);

  // `run` in steps, for a caller that does not block.
  void begin(std::vector<WantedItem> wanted, std::vector<PeerId> sources);
  /// The next pull; nullopt: all wanted items are here, or no source is left.
  [[nodiscard]] std::optional<TransferPlan::Pull> next() const { return plan_.next(); }
  /// The end of the pull that was due. An error is one that no source can mend.
  [[nodiscard]] Error came(const TransferPlan::Pull& pull, const Error& error, Memory memory,
                           const Hash& hash);
  [[nodiscard]] bool complete() const { return plan_.complete(); }

  /// The item with this digest, which is here.
  [[nodiscard]] std::span<const std::byte> at(const Digest& digest) const;
  /// Bytes of all items that have come, of bad ones too.
  [[nodiscard]] std::uint64_t bytes_received() const { return bytes_received_; }

  /// Exchanges the fetched items with the targets: afterwards all targets hold the fetched state,
  /// or, with an error, nothing has changed.
  [[nodiscard]] Error replace(const std::vector<Target>& targets);
  /// Undoes the last `replace`. Does nothing if `begin`, `clear` or `take_back` was called since.
  void take_back();
  /// Forgets the fetched items, and the former contents of the targets.
  void clear();

 private:
  struct Replaced {
    Target target;
    Memory memory;  // what the target held
  };

  TransferPlan plan_;
  std::map<Digest, Memory> here_;
  std::uint64_t bytes_received_ = 0;
  std::vector<Replaced> replaced_;  // in that order
};

}  // namespace pccl
