// A state that is being fetched: memory beside the caller's, filled item by item as the plan says
// (plan.h). An item is kept when its digest has been checked; in the end all of them change places
// with the caller's memory at once, and back where that broke off. Pure: the caller gives the
// functions that pull and hash, and they may throw (Ctrl-C): then everything is as before the pull.
// One thread at a time.
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
  /// Memory for one item, which holds anything until a pull has filled it.
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

  /// Fills `to` with that item, or makes it, if the size was not known.
  using PullInto = std::function<Error(const TransferPlan::Pull& pull, Memory& to)>;
  /// Of an item. That of item 0, the manifest, is its plain SHA-256.
  using Hash = std::function<Digest(std::span<const std::byte>)>;
  struct Target {
    Digest digest{};
    std::span<std::byte> memory;
  };

  /// Pulls what is not here yet. True: everything wanted is here, checked. False: no source is
  /// left. What came before a failure, or an exception, stays for the next call.
  [[nodiscard]] Result<bool> run(std::vector<WantedItem> wanted, std::vector<PeerId> sources,
                                 const PullInto& pull, const Hash& hash);

  // The same step by step, for a caller that does not block.
  void begin(std::vector<WantedItem> wanted, std::vector<PeerId> sources);
  /// nullopt: everything wanted is here, or no source is left.
  [[nodiscard]] std::optional<TransferPlan::Pull> next() const { return plan_.next(); }
  /// The end of the pull that was due. An error is one that no source can mend.
  [[nodiscard]] Error came(const TransferPlan::Pull& pull, const Error& error, Memory memory,
                           const Hash& hash);
  [[nodiscard]] bool complete() const { return plan_.complete(); }

  /// The item with this digest, which is here.
  [[nodiscard]] std::span<const std::byte> at(const Digest& digest) const;
  /// Of all items that have come, good or not.
  [[nodiscard]] std::uint64_t bytes_received() const { return bytes_received_; }

  /// All of the targets hold what was fetched, which is here no more; or, with an error, nothing
  /// has changed.
  [[nodiscard]] Error replace(const std::vector<Target>& targets);
  /// Undoes the last `replace`; nothing where neither that nor anything after it was called.
  void take_back();
  /// Forgets everything that is here, and what the targets held.
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
