// See the header.
#include "master/store_desk.h"

#include <utility>

#include "base/limits.h"

namespace pccl::master {

static_assert(kStoreQueuedBytesMax < kUnreadBytesOfAllMax);  // the store is refused first

void StoreDesk::request(PeerId peer, StoreRequest request) {
  if (connections_.has_room(peer) && !held_.any(peer)) return serve(peer, request);
  hold(peer, std::move(request));
}

void StoreDesk::hold(PeerId peer, StoreRequest request) {
  if (held_.hold(peer, std::move(request))) return;
  asks_.gives_up(peer, "it goes on asking the store without reading the answers");
}

void StoreDesk::room(PeerId peer) {
  while (connections_.has_room(peer)) {
    const auto held = held_.next(peer);
    if (!held) return;
    if (!held->refused) {
      serve(peer, held->request);
    } else {
      connections_.send(peer,
                        no_room(held->request.id, "this peer does not read what it has asked for"));
    }
  }
}

void StoreDesk::serve(PeerId peer, const StoreRequest& request) {
  answer(store_.request(peer, request, asks_.owner(peer)));
  const Waiter waiter{peer, request.id};
  if (!store_.waits(waiter) || timers_.contains(waiter)) return;
  timers_[waiter] = clock_.timer(request.timeout_ms, 0, [this, waiter] {
    if (auto expired = store_.expire(waiter)) answer({*std::move(expired)});
  });
}

void StoreDesk::answer(const std::vector<StoreAnswer>& answers) {
  for (const StoreAnswer& one : answers) {
    if (!store_.waits(one.to)) timers_.erase(one.to);
    if (one.waited && !connections_.has_room(one.to.peer)) {
      hold(one.to.peer, *one.waited);  // several keys: it is repeated when the peer has read
      continue;
    }
    const std::size_t bytes = value_bytes(one.reply);
    if (bytes > kStoreSmallBytes && connections_.queued_bytes() + bytes > kStoreQueuedBytesMax) {
      connections_.send(one.to.peer,
                        no_room(one.to.request, "its peers do not read what it has sent them"));
    } else {
      connections_.send(one.to.peer, one.reply);
    }
  }
}

void StoreDesk::drop(PeerId peer) {
  held_.drop(peer);
  store_.drop(peer);
  std::erase_if(timers_, [&](const auto& timer) { return timer.first.peer == peer; });
}

void StoreDesk::close() {
  timers_.clear();
  store_ = KeyValueStore();
  held_ = HeldRequests();
}

}  // namespace pccl::master
