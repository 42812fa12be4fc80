// Two ends of a relayed link, and between them a peer that the test plays: it sees each frame that
// one end sends for the other, and passes on what it likes.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "played_links.h"
#include "recorder.h"

namespace pccl::test {

struct PlayedEnd {
  KeyPair identity = KeyPair::make();
  Recorder events;
  PlayedLinks* direct = nullptr;
  std::unique_ptr<Links> links;
  explicit PlayedEnd(Loop& loop) {
    links =
        std::move(make_relay_links(loop, events, {identity, random_secret}, [&](DirectEvents& to) {
          auto played = std::make_unique<PlayedLinks>(to, identity.public_key());
          direct = played.get();
          return Result<std::unique_ptr<DirectLinks>>(std::move(played));
        })).value();
  }
  [[nodiscard]] PeerId id() const { return links->self(); }
  [[nodiscard]] Handle handle() const { return {id(), {}, identity.public_key()}; }
};

struct PlayedRelay {
  Loop loop;
  PlayedEnd a{loop}, b{loop};
  std::vector<std::byte> memory = std::vector<std::byte>(4U << 20);  // of `b`
  /// What becomes of a frame; by default it is passed on.
  std::function<std::vector<Passed>(PlayedEnd& from, Passed frame)> plays;

  PlayedRelay() { b.events.place = place_in(memory); }
  void open() {
    a.links->open_via(b.handle(), kBetween, 30000);
    b.links->open_via(a.handle(), kBetween, 30000);
    pass();
  }
  [[nodiscard]] bool both_up() const { return a.links->is_up(b.id()) && b.links->is_up(a.id()); }
  [[nodiscard]] PlayedEnd& other(const PlayedEnd& end) { return &end == &a ? b : a; }
  /// Passes on all that the ends send, and tells them what has become of their links.
  void pass() {
    while (!a.direct->sent.empty() || !b.direct->sent.empty()) {
      for (PlayedEnd* from : {&a, &b}) {
        if (from->direct->sent.empty()) continue;
        const Passed frame = take(*from);
        for (const Passed& passed : plays ? plays(*from, frame) : std::vector{frame}) {
          other(*from).direct->hear(passed);
        }
      }
      loop.run_once(false);
    }
    for (int turn = 0; turn < 3; ++turn) loop.run_once(false);
  }
  /// The next frame of this end, which hears that it was sent, and gets credit for it.
  Passed take(PlayedEnd& from) {
    const Passed frame = std::move(from.direct->sent.front());
    from.direct->sent.pop_front();
    if (!frame.is_segment()) return frame;
    from.direct->was_sent(frame);
    from.direct->hear({encode_relay({RelayKind::credit,
                                     other(from).id(),
                                     from.id(),
                                     0,
                                     relay_cost(frame.header.bytes),
                                     {}}),
                       {}});
    return frame;
  }
  void say(PlayedEnd& from, const std::string& text) {
    from.links->send_control(other(from).id(), bytes_of(text));
  }
  void send(const Tensor& tensor, std::size_t segment_bytes) {
    // Links::send_segment borrows.
    for (std::size_t at = 0; at < tensor.bytes.size(); at += segment_bytes) {
      SegmentHeader header;
      header.group.value = 0x0102030405060708;
      header.op = {0x1112131415161718, 0x2122232425262728};
      header.offset = at;
      header.bytes = static_cast<std::uint32_t>(std::min(segment_bytes, tensor.bytes.size() - at));
      a.links->send_segment(b.id(), header, tensor.bytes.data() + at, 1, at);
    }
  }
};

}  // namespace pccl::test
