// See liar.h.
#include "liar.h"

#include <algorithm>

namespace pccl::sim {
namespace {

std::uint64_t near(std::uint64_t n, Random& random) {
  switch (random.below(6)) {
    case 0:
      return n + 1;
    case 1:
      return n == 0 ? 0 : n - 1;
    case 2:
      return n + random.below(1000);
    case 3:
      return random.next() >> random.below(64);
    case 4:
      return 0;
    default:
      return n;
  }
}

OpKey near(OpKey key, Random& random) {
  return OpKey{near(key.step, random), near(key.index, random)};
}

/// Mostly few; now and then as many as the wire takes.
std::size_t number(std::size_t most, Random& random) {
  return random.below(100) == 0 ? most : random.below(4);
}

std::vector<OpKey> operations(OpKey around, Random& random) {
  std::vector<OpKey> ops;
  const std::size_t count = number(kReportOpsMax, random);
  const bool in_a_row = random.below(2) == 0;
  const OpKey from = near(around, random);
  for (std::size_t i = 0; i < count; ++i) {
    if (in_a_row) {
      ops.push_back(OpKey{from.step, from.index + i});
    } else if (random.below(2) == 0) {
      ops.push_back(OpKey{from.step + i, from.index});
    } else {
      ops.push_back(near(around, random));
    }
  }
  return ops;
}

std::vector<PeerId> peers(const Known& known, Random& random) {
  std::vector<PeerId> out = known.peers;
  if (out.empty()) return out;
  if (random.below(2) == 0) out.erase(out.begin() + static_cast<int>(random.below(out.size())));
  if (random.below(2) == 0) out.push_back(PeerId{random.next()});
  if (!out.empty() && random.below(3) == 0) out.push_back(out.front());
  return out;
}

PeerId someone(const Known& known, Random& random) {
  if (known.peers.empty() || random.below(10) == 0) return PeerId{random.next()};
  return known.peers[random.below(known.peers.size())];
}

EpochId epoch(const Known& known, Random& random) {
  if (random.below(4) > 0) return known.epoch;
  return EpochId{near(known.epoch.value, random)};
}

StateRoot root(Random& random) {
  StateRoot out{random.below(2) == 0, near(3, random), {}};
  out.digest[0] = static_cast<std::uint8_t>(random.next());
  return out;
}

void spoil(Report& r, const Known& known, Random& random) {
  const OpKey at{r.step, r.issued.index};
  for (std::uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
    switch (random.below(14)) {
      case 0:
        r.step = near(r.step, random);
        break;
      case 1:
        r.passed = near(r.passed, random);
        break;
      case 2:
        r.committed.below = near(r.committed.below, random);
        break;
      case 3:
        r.committed.also = operations(at, random);
        break;
      case 4:
        r.done = operations(at, random);
        break;
      case 5: {
        const std::uint64_t from = near(r.step, random);
        r.flags.clear();
        for (std::size_t i = number(kReportFlagsMax, random); i > 0; --i) {
          r.flags.push_back(StepFlag{from + i, random.below(2) == 0});
        }
        break;
      }
      case 6:
        r.issued = near(r.issued, random);
        break;
      case 7:
        r.pinned = peers(known, random);
        break;
      case 8:
        r.started_members = peers(known, random);
        break;
      case 9:
        r.failure = Failure{near(at, random), Error{ErrorCode::mismatch, "it says so"}};
        break;
      case 10:
        r.vote = static_cast<VoteKind>(random.below(3));
        r.root = root(random);
        break;
      case 11:
        r.calm = !r.calm;
        break;
      case 12:
        // Consistent in itself: only others can tell that it is not true.
        r.step += random.below(300);
        r.issued = OpKey{r.step, random.below(2 * kReportOpsMax)};
        r.committed = OpSet{OpKey{r.step, std::min<std::uint64_t>(2, r.issued.index)}, {}};
        r.done.clear();
        for (std::uint64_t i = 2; i < r.issued.index && r.done.size() < kReportOpsMax;
             i += 1 + random.below(3)) {
          (random.below(2) == 0 ? r.committed.also : r.done).push_back(OpKey{r.step, i});
          if (r.committed.also.size() == kReportOpsMax) break;
        }
        break;
      default:
        if (random.below(4) == 0) r.accepted = EpochId{near(r.accepted.value, random)};
        if (random.below(4) == 0) r.started = epoch(known, random);
        break;
    }
  }
}

}  // namespace

PeerToMaster spoiled(PeerToMaster said, const Known& known, Random& random) {
  if (auto* hello = std::get_if<Hello>(&said)) {
    spoil(hello->report, known, random);
  } else if (auto* ready = std::get_if<Ready>(&said)) {
    spoil(ready->report, known, random);
  } else if (auto* done = std::get_if<Done>(&said)) {
    done->ops = operations(known.next, random);
  } else if (auto* vote = std::get_if<Vote>(&said)) {
    vote->step = near(vote->step, random);
    vote->root = root(random);
  }
  return said;
}

PeerToMaster invented(const Known& known, Random& random) {
  switch (random.below(12)) {
    case 10:
      return Measured{someone(known, random), random.next() >> random.below(64), random.next()};
    case 9:
      return Tried{{{someone(known, random), random.below(2) == 0 ? "" : "no"}}};
    case 0:
      return Done{epoch(known, random), operations(known.next, random)};
    case 1:
      return Expired{epoch(known, random), near(known.next, random)};
    case 2:
      return Mismatch{epoch(known, random), near(known.next, random),
                      Error{ErrorCode::mismatch, "it says so"}};
    case 3:
      return Suspect{epoch(known, random), someone(known, random), random.below(2) == 0};
    case 4:
      return Relinked{epoch(known, random), someone(known, random)};
    case 5:
      return Cannot{epoch(known, random), someone(known, random), "no", someone(known, random)};
    case 6:
      return Heartbeat{near(known.next, random), random.below(2) == 0, random.below(2) == 0};
    case 7:
      return Vote{near(known.next.step, random), static_cast<VoteKind>(random.below(3)),
                  root(random)};
    case 8:
      return Knock{root(random)};
    default:
      return Leave{random.below(2) == 0};
  }
}

}  // namespace pccl::sim
