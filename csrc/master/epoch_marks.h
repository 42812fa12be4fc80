// Marks by which a master knows the epochs that masters with its key have named: a member that
// reports an epoch without its mark has invented it (trust/token.h).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/ids.h"
#include "trust/secrets.h"
#include "trust/token.h"
#include "wire/messages.h"

namespace pccl::master {

class EpochMarks {
 public:
  /// No marks: no message gets one, and any epoch counts as marked.
  EpochMarks() = default;
  EpochMarks(const Secret& master, std::string run) : key_(Key{master, std::move(run)}) {}

  /// A proposal, or a start, with its mark; nullopt: the message has none.
  [[nodiscard]] std::optional<MasterToPeer> marked(const MasterToPeer& message) const {
    if (!key_) return std::nullopt;
    if (const auto* proposal = std::get_if<Propose>(&message)) {
      Propose with_mark = *proposal;
      with_mark.mark = mark_of(proposal->epoch.id, Named::proposed);
      return with_mark;
    }
    if (const auto* start = std::get_if<Start>(&message)) {
      Start with_mark = *start;
      with_mark.mark = mark_of(start->epoch, Named::started);
      return with_mark;
    }
    return std::nullopt;
  }

  [[nodiscard]] bool is_marked(EpochId epoch, Named how, const Digest& mark) const {
    if (!key_ || epoch == EpochId{}) return true;
    return epoch_mark(key_->master, key_->run, epoch, how).same_as(Secret(mark));
  }

 private:
  struct Key {
    Secret master;
    std::string run;
  };

  [[nodiscard]] Digest mark_of(EpochId epoch, Named how) const {
    return epoch_mark(key_->master, key_->run, epoch, how).disclosed();
  }

  std::optional<Key> key_;
};

}  // namespace pccl::master
