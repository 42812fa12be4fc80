#include "engine/master_client.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "wire/codec.h"

namespace pccl {
namespace {

constexpr std::uint64_t kDialMs = 3000;      // one attempt; the list goes round
constexpr std::uint64_t kSayAwayMs = 10000;  // without a master; then doubled each time

}  // namespace

MasterClient::MasterClient(EngineContext& context, std::vector<std::string> masters,
                           std::string run, Events events)
    : context_(context),
      masters_(std::move(masters)),
      run_(std::move(run)),
      kept_out_(masters_.size()),
      seen_(masters_.size()),
      events_(std::move(events)),
      random_(context.links.self().value) {}

MasterClient::~MasterClient() {
  for (auto& [id, call] : store_calls_) {
    call.ticket->complete({ErrorCode::closed, "the engine has been closed"});
  }
}

std::string MasterClient::masters_text() const {
  std::string text;
  for (const std::string& master : masters_) add_to_list(text, master);
  return text;
}

std::string MasterClient::seen_text() const {
  std::string text;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    const std::string seen = seen_at(i);
    if (!seen.empty()) add_to_list(text, masters_[i] + ": " + seen, "; ");
  }
  return text;
}

std::string MasterClient::seen_at(std::size_t i) const {
  if (channel_ && !greeted_ && i == at_) {
    return stands_by_.empty() ? "connected, but no answer to hello" : stands_by_;
  }
  if (seen_[i].text.empty() && dial_ && i == at_) return dial_->report();
  return seen_[i].text;
}

bool MasterClient::has_failed() const {
  return std::any_of(seen_.begin(), seen_.end(), [](const Error& error) { return error.failed(); });
}

bool MasterClient::is_kept_out() const {
  return std::all_of(kept_out_.begin(), kept_out_.end(), [](bool out) { return out; });
}

bool MasterClient::is_refused() const {
  return std::all_of(seen_.begin(), seen_.end(),
                     [](const Error& error) { return error.code == ErrorCode::refused; });
}

Error MasterClient::nobody(const std::string& how_long) const {
  return {is_refused() ? ErrorCode::refused : ErrorCode::unreachable,
          "no master at " + masters_text() + " " + how_long + ": " +
              (masters_.size() == 1 ? seen_at(0) : seen_text())};
}

void MasterClient::dial() {
  if (closed_.failed() || channel_ || dial_) return;
  at_ = next_ % masters_.size();
  const std::string& address = masters_[at_];
  dial_ = context_.network.dial(
      address, run_, std::min(kDialMs, context_.options.master_timeout_ms),
      [this](Result<std::unique_ptr<Channel>> result) { dialled(std::move(result)); });
}

void MasterClient::dialled(Result<std::unique_ptr<Channel>> result) {
  auto finished = std::move(dial_);  // lives until this callback is over
  kept_out_[at_] = finished->kept_out();
  if (!result) {
    seen_[at_] = result.error();
    ++next_;
    retry();
    return;
  }
  channel_ = std::move(result).value();
  channel_->trust();
  local_host_ = channel_->local_host();
  greeted_ = false;
  stands_by_.clear();
  since_message_ms_ = 0;
  since_heartbeat_ms_ = 0;
  channel_->set_events({[this](std::span<const std::byte> payload) { arrived(payload); },
                        [this](const std::string& reason) { disconnected(reason); }});
  events_.connected();
}

void MasterClient::retry() {
  if (closed_.failed()) return;
  const std::uint64_t delay = backoff_ms_ / 2 + random_.below(backoff_ms_ / 2 + 1);
  backoff_ms_ = std::min(backoff_ms_ * 2, kBackoffMsMax);
  retry_timer_ = context_.clock.timer(delay, 0, [this] { dial(); });
}

void MasterClient::disconnected(const std::string& reason) {
  if (!channel_) return;
  // The channel may be the caller: it is destroyed when the loop comes round.
  context_.clock.post([old = std::shared_ptr<Channel>(std::move(channel_))] {});
  const std::string& why = stands_by_.empty() ? reason : stands_by_;
  seen_[at_] = {ErrorCode::unreachable, why};
  if (!greeted_) ++next_;  // a standby: first round the list, but to the master of an epoch first
  // The store does not outlive its master: who set a group up meanwhile makes it anew.
  for (auto it = store_calls_.begin(); it != store_calls_.end();) {
    if (!it->second.sent) {
      ++it;
      continue;
    }
    auto node = store_calls_.extract(it++);
    node.mapped().ticket->complete(
        {ErrorCode::unreachable,
         "the connection to the master was lost during a call of its store: " + reason});
  }
  const bool news = welcomed_ && !closed_.failed() && !std::exchange(said_lost_, true);
  if (news) {
    log_warning("the connection to the master (" + masters_text() + ") was lost: " + why +
                "; operations wait for their commit until a master is back, " +
                seconds(context_.options.hold_timeout_ms) + " at most (PCCL_HOLD_TIMEOUT_S)");
  }
  events_.lost(why, news);
  retry();
}

void MasterClient::arrived(std::span<const std::byte> payload) {
  since_message_ms_ = 0;
  auto message = decode_master_to_peer(payload);
  if (!message) {
    const std::string text =
        masters_[at_] +
        " sent something that this version does not understand: " + message.error().text;
    if (std::exchange(said_, text) != text) log_error(text);  // it is dialled again and again
    disconnected(message.error().text);
    return;
  }
  if (std::holds_alternative<Heartbeat>(message.value())) return;
  if (const auto* hold = std::get_if<Hold>(&message.value())) {
    (greeted_ ? told_ : stands_by_) = hold->text;
    if (!greeted_) return;
  }
  // A reply of the store is no greeting.
  if (auto* reply = std::get_if<StoreReply>(&message.value())) {
    auto node = store_calls_.extract(reply->id);
    if (node.empty()) return;
    Ticket& ticket = *node.mapped().ticket;
    ticket.result<StoreResult>() = {std::move(reply->values), std::move(reply->keys),
                                    reply->amount};
    ticket.complete(std::move(reply->error));
    return;
  }
  const bool first = !std::exchange(greeted_, true);
  if (first) {
    backoff_ms_ = kBackoffMsMin;
    stands_by_.clear();
  }
  events_.message(message.value());
  if (!first) return;
  was_greeted_ = true;
  without_ms_ = 0;
  say_away_ms_ = kSayAwayMs;
  for (auto& [id, call] : store_calls_) send_to_store(call);
}

void MasterClient::send(const PeerToMaster& message) {
  if (channel_) channel_->send(encode(message));
}

void MasterClient::store(StoreRequest request, std::shared_ptr<Ticket> ticket) {
  if (closed_.failed()) return ticket->complete(closed_);
  request.id = ++last_store_id_;
  StoreCall& call = store_calls_[request.id];
  call.request = std::move(request);
  call.ticket = std::move(ticket);
  send_to_store(call);
}

/// A master that stands by gets no call: the call would end with the connection to it.
void MasterClient::send_to_store(StoreCall& call) {
  if (call.sent || !in_charge()) return;
  call.sent = true;
  channel_->send(encode(PeerToMaster{call.request}));
}

bool MasterClient::welcomed(const Welcome& welcome) {
  if (welcome.heartbeat_ms > 0) heartbeat_ms_ = welcome.heartbeat_ms;
  silence_ms_ = welcome.silence_ms;
  welcomed_ = true;
  const bool back = std::exchange(said_lost_, false);
  if (back) {
    log_info("connected to the master again after " + std::to_string(without_ms_ / 1000) + " s");
  }
  return back;
}

void MasterClient::tick(std::uint64_t elapsed_ms) {
  std::vector<std::uint64_t> late;
  for (auto& [id, call] : store_calls_) {
    call.waited_ms += elapsed_ms;
    // The master answers in time; this is for one that does not, or is not there.
    const std::uint64_t limit = call.request.timeout_ms + (call.sent ? 2000 : 0);
    if (call.request.timeout_ms > 0 && call.waited_ms > limit) late.push_back(id);
  }
  for (const std::uint64_t id : late) {
    auto node = store_calls_.extract(id);
    node.mapped().ticket->complete(
        {ErrorCode::timed_out,
         "the master's store did not answer within " +
             std::to_string(node.mapped().request.timeout_ms) + " ms" +
             (in_charge() ? "" : " (no master in charge: " + seen_text() + ")")});
  }
  if (!closed_.failed() && !in_charge()) {
    without_ms_ += elapsed_ms;
    if (was_greeted_ && without_ms_ >= say_away_ms_) {
      say_away_ms_ *= 2;
      const std::uint64_t limit_ms = std::max(context_.options.hold_timeout_ms, without_ms_);
      log_warning("still no master after " + std::to_string(without_ms_ / 1000) + " s (" +
                  seconds(limit_ms - without_ms_) + " are left): " + seen_text());
    }
  }
  if (!channel_) return;
  since_heartbeat_ms_ += elapsed_ms;
  if (since_heartbeat_ms_ >= heartbeat_ms_) {
    since_heartbeat_ms_ = 0;
    channel_->send(encode(PeerToMaster{events_.heartbeat()}));
  }
  const std::uint64_t received = channel_->received_bytes();
  if (received != std::exchange(received_before_, received)) since_message_ms_ = 0;
  // A tick that came late was our own silence: it does not count against the master.
  since_message_ms_ += std::min<std::uint64_t>(elapsed_ms, heartbeat_ms_);
  if (since_message_ms_ > silence_ms_) {
    ++next_;
    disconnected("the master was silent for " + std::to_string(since_message_ms_) + " ms");
  }
}

void MasterClient::close(const Error& error) {
  if (closed_.failed()) return;
  closed_ = error;
  retry_timer_.reset();
  dial_.reset();
  for (auto& [id, call] : std::exchange(store_calls_, {})) call.ticket->complete(error);
  if (!channel_) return;
  channel_->set_events({[](std::span<const std::byte>) {}, [](const std::string&) {}});
  channel_->close();
}

}  // namespace pccl
