#include "judge.h"

#include <algorithm>
#include <string>

namespace pccl::sim {
namespace {

constexpr std::uint64_t kEndMs = 600000;  // everything has ended by then, or so long after a doze
// One alone with a liar waits half an hour in each call.
constexpr std::uint64_t kLiarMs = 43200000;
constexpr std::uint64_t kEventsMax = 4000000;  // of one walk

std::string where(const Time& time, const std::vector<std::unique_ptr<Member>>& members) {
  std::string text = "at " + std::to_string(time.now_us() / 1000) + " ms";
  for (const auto& member : members) text += "; " + member->where();
  return text;
}

/// A program that dozes has its calls before it still, and a refused one may take a minute.
bool too_late(const Time& time, const std::vector<std::unique_ptr<Member>>& members,
              std::uint64_t end_ms) {
  std::uint64_t dozes_until_us = 0;
  for (const auto& member : members) {
    dozes_until_us = std::max(dozes_until_us, member->dozes_until_us());
  }
  return time.now_us() > dozes_until_us + end_ms * 1000;
}

}  // namespace

Walked judged(Time& time, const Book& book, const std::function<void()>& story) {
  Walked walked;
  try {
    story();
  } catch (const Violation& violation) {
    walked.violation = violation.what();
    time.say(nullptr, std::string("VIOLATION ") + violation.what());
  }
  walked.calls = book.calls_checked;
  walked.messages = book.messages_checked;
  walked.bits = book.bits_checked;
  walked.hash = time.hash();
  return walked;
}

void until_over(Time& time, const std::vector<std::unique_ptr<Member>>& members,
                std::size_t at_least, const PeerId* liar) {
  const std::uint64_t end_ms = liar == nullptr ? kEndMs : kLiarMs;
  for (std::uint64_t events = 0;; ++events) {
    if (events > kEventsMax) throw Violation("too much happens: " + where(time, members));
    if (too_late(time, members, end_ms))
      throw Violation("it does not end: " + where(time, members));
    if (members.size() >= at_least &&
        std::all_of(members.begin(), members.end(), [&](const auto& m) {
          return m->over() || (liar != nullptr && m->id() == *liar);
        })) {
      return;
    }
    if (!time.step()) throw Violation("nothing happens any more: " + where(time, members));
  }
}

}  // namespace pccl::sim
