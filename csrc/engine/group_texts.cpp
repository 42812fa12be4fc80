// Texts about a group and its operations: for errors, the log, and reports of bugs.
#include <algorithm>

#include "base/text.h"
#include "engine/group.h"

namespace pccl {

std::string Group::report() const {
  constexpr std::size_t kShown = 16;
  std::string text =
      name_ + " " + std::to_string(id_.value) + ": epoch " + to_string(run_->id) + ", members";
  for (const PeerId peer : members()) text += " " + to_string(peer);
  text +=
      ", next operation " + to_string(next_key()) + ", in flight " + std::to_string(ops_.size());
  std::size_t shown = 0;
  for (const auto& [key, pending] : ops_) {
    if (++shown > kShown) break;
    text += "; " + describe_wait(pending) + (pending.op->running() ? "" : ", not running") +
            (pending.op->complete() ? ", complete here" : "");
  }
  return text;
}

std::string Group::describe_member(PeerId peer) const {
  return name_ + ": " + describe_peer(peer, numbering_ ? *numbering_ : members());
}

/// What the next line of the operation is compared with.
void Group::note_traffic(Pending& pending) const {
  pending.said_came = context_.links.segment_bytes_received();
  pending.said_held = context_.links.rate_held_ms();
}

/// Was this process's own rate the limit for most of the time since the last line?
std::string Group::held_text(const Pending& pending) const {
  const std::uint64_t held_ms = context_.links.rate_held_ms() - pending.said_held;
  if (held_ms == 0 || 2 * held_ms < pending.waited_total_ms - pending.said_ms) return "";
  return "; this member's sending is held by PCCL_MAX_RATE (" +
         bytes_text(context_.options.links.max_rate) + "/s)";
}

std::string Group::waiting_text(const Pending& pending) const {
  const Operation& op = *pending.op;
  const std::string for_so_long = std::to_string(pending.waited_total_ms / 1000) + " s";
  std::string text = describe_op(pending) + " has been waiting for " + for_so_long + " ";
  if (ops_.is_deferred(op.key()))
    return text + "for an earlier call (a barrier waits for all, others for the same memory, for " +
           "room for a preimage, or for large ones that are under way)";
  if (op.complete()) return text + "for the commit: it is complete here; " + no_commit_text();
  if (pending.gave_up) return text + "to fail at all members: there is no memory for it here";
  if (!op.running()) return text + "for the next epoch";
  if (op.waits_for_inputs()) return text + "for its own tensors: the device has not computed them";
  const auto peers = op.waiting_for();
  const Operation::Progress moved = op.moved();
  const std::uint64_t lately = moved.done - std::min(moved.done, pending.said_bytes);
  const std::uint64_t in_ms = std::max<std::uint64_t>(pending.waited_total_ms - pending.said_ms, 1);
  const std::string done =
      bytes_text(moved.done) + " of " + bytes_text(moved.of) + (moved.sent ? " sent" : " received");
  const std::string speed = ", " + bytes_text(lately * 1000 / in_ms) + "/s";
  if (lately > 0)
    text = describe_op(pending) + " moves, after " + for_so_long + ": " + done + speed;
  const std::string held = held_text(pending);
  if (peers.empty()) return (lately > 0 ? text : text + "to send its part (" + done + ")") + held;
  std::string owing;
  for (const std::uint32_t i : peers) {
    add_to_list(owing, describe_peer(pending.contributors[i], *pending.numbering));
  }
  text += lately > 0 ? "; the rest comes from " + owing : "for data from " + owing;
  if (lately == 0 && moved.done > 0) text += " (" + done + ")";
  const std::uint64_t came = context_.links.segment_bytes_received();
  if (lately == 0 && came > pending.said_came) {  // bytes count when their segment is whole
    text += "; data come, " + bytes_text((came - pending.said_came) * 1000 / in_ms) +
            "/s over all links, and no segment is whole yet";
  }
  text += held;
  // A rank that owes data may itself wait for a late rank: all ranks wait for the late ones.
  const auto those = [&](auto are, std::string_view do_what) {
    std::string list;
    std::size_t number = 0;
    for (const PeerId peer : pending.contributors) {
      if (!are(peer)) continue;
      add_to_list(list, describe_peer(peer, *pending.numbering));
      ++number;
    }
    if (number > 0) text += "; " + list + (number == 1 ? " has " : " have ") + do_what.data();
  };
  those([&](PeerId peer) { return late(op.key(), peer); }, "not called it yet");
  those([&](PeerId peer) { return past(op.key(), peer); },
        "gone on to a later step, with this call or without it");
  return text;
}

std::vector<OpInFlight> Group::in_flight() const {
  std::vector<OpInFlight> list;
  for (const auto& [key, pending] : ops_) {
    const Operation& op = *pending.op;
    list.push_back({key, op.request().descriptor, op.bytes_sent(), op.bytes_received(),
                    op.complete(), op.algorithm()});
  }
  return list;
}

std::string describe(const OpDescriptor& d) {
  std::string text(kind_name(d.kind));
  std::string details;
  const auto add_detail = [&](const std::string& more) { add_to_list(details, more); };
  if (d.reduce != ReduceOp::none) add_detail(std::string(reduce_name(d.reduce)));
  if (d.kind != OpKind::barrier) add_detail(std::string(dtype_name(d.dtype)));
  if (d.count > 0) {
    add_detail(std::to_string(d.count == kNoElements ? 0 : d.count) + " elements");
  }
  if (d.root >= 0) add_detail("root " + std::to_string(d.root));
  if (d.quantisation != Quantisation::none) {
    add_detail("quantised to " + std::string(quantisation_name(d.quantisation)));
  }
  return details.empty() ? text : text + "(" + details + ")";
}

std::string Group::describe_op(const Pending& pending) const {
  const Operation& op = *pending.op;
  const OpRequest& request = op.request();
  std::string text = describe(request.descriptor) + " " + numbered(op.key());
  if (request.descriptor.count == 0 && request.descriptor.kind != OpKind::barrier) {
    text += " (" + std::to_string(total_bytes(request.inputs)) + " bytes in, " +
            std::to_string(op.output_bytes()) + " bytes out)";  // here: sizes may differ by rank
  }
  return text;
}

/// Fixed groups have no steps: torch counts their operations through.
std::string Group::numbered(OpKey key) const {
  return "#" + (is_elastic() ? to_string(key) : std::to_string(key.index));
}

std::string Group::describe_wait(const Pending& pending) const {
  return describe_op(pending) + ", after " + seconds(pending.waited_total_ms);
}

std::string Group::describe_peer(PeerId peer, const std::vector<PeerId>& numbering) const {
  const auto at = std::find(numbering.begin(), numbering.end(), peer);
  const auto address = addresses_.find(peer);
  const bool known = address != addresses_.end() && !address->second.empty();
  const std::string where = known ? " at " + printable(address->second) : "";
  if (at == numbering.end()) return "peer " + context_.name(peer) + where;
  return "rank " + std::to_string(at - numbering.begin()) + " (" + context_.name(peer) + where +
         ")";
}

}  // namespace pccl
