// See monitored_barrier.h.
#include "torch/monitored_barrier.h"

#include <ATen/Functions.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "torch/backend.h"
#include "torch/errors.h"

namespace pccl {
namespace {

using Clock = std::chrono::steady_clock;
using Millis = MonitoredBarrier::Millis;

// Tags above all tags of users, which are an int.
constexpr std::uint64_t kFromRoot = 1ULL << 40;
constexpr std::uint64_t kToRoot = kFromRoot + 1;  // and above it, by the number of the barrier

// Words of the root, each with the number of its barrier.
constexpr std::int64_t kIsThere = 0;
constexpr std::int64_t kGoesOn = 1;

constexpr Millis kSignalSlice{100};

/// Down to zero.
Millis left_until(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<Millis>(deadline - Clock::now()), Millis::zero());
}

at::Tensor word_of(std::int64_t what, std::uint64_t number) {
  return at::tensor({what, static_cast<std::int64_t>(number)}, at::kLong);
}

}  // namespace

void MonitoredBarrier::pass(Millis timeout, bool wait_all_ranks) {
  const auto deadline = Clock::now() + timeout;
  std::unique_lock lock(mutex_, std::defer_lock);
  while (!lock.try_lock_for(std::min(kSignalSlice, left_until(deadline)))) {
    if (left_until(deadline) == Millis::zero()) {
      raise({ErrorCode::timed_out, "monitoredBarrier has timed out after " +
                                       std::to_string(timeout.count()) +
                                       " ms: another thread of this process has been in one"});
    }
    check_signals();
  }
  if (group_.numbers().rank == 0) {
    collect_at_root(deadline, timeout, wait_all_ranks);
  } else {
    report_to_root(deadline);
  }
}

/// The next word of rank 0. An earlier call, which a signal's handler has ended, may have left its
/// receive behind: its word is this one's.
at::Tensor MonitoredBarrier::word_of_root(Clock::time_point deadline) {
  for (;;) {
    if (asked_ && asked_->context != group_.context())
      asked_.reset();  // of an earlier configuration
    const bool left_behind = asked_.has_value();
    const Millis left = std::max(left_until(deadline), Millis(1));
    if (!left_behind) {
      at::Tensor word = word_of(0, 0);
      auto received_in = group_.context();
      asked_ = Asked{std::move(received_in), group_.message(OpKind::recv, word, 0, kFromRoot, left),
                     word};
    }
    try {
      asked_->work->wait(left);
      return std::exchange(asked_, std::nullopt)->word;
    } catch (const PcclError&) {
      if (!asked_->work->isCompleted()) throw;  // the next call takes it up
      const Asked ended = *std::exchange(asked_, std::nullopt);
      if (ended.work->isSuccess()) return ended.word;  // it came just now
      if (!left_behind) throw;  // else the time of the earlier call is over, not that of this one
    }
  }
}

void MonitoredBarrier::report_to_root(Clock::time_point deadline) {
  at::Tensor token = at::zeros({1}, at::kByte);
  std::optional<std::int64_t> answered;
  try {
    for (;;) {
      const at::Tensor word = word_of_root(deadline);
      const auto number = word[1].item<std::int64_t>();
      if (word[0].item<std::int64_t>() == kGoesOn) {
        if (answered == number) return;
        continue;  // from a barrier for which this rank had waited too long
      }
      answered = number;
      const std::uint64_t tag = kToRoot + static_cast<std::uint64_t>(number);
      // Not waited for: rank 0 takes no answer to a barrier that it has given up.
      group_.message(OpKind::send, token, 0, tag, std::max(left_until(deadline), Millis(1)));
    }
  } catch (const PcclError& error) {
    raise({error.code(), "Rank " + std::to_string(group_.numbers().rank) +
                             " successfully reached monitoredBarrier, but received errors while "
                             "waiting for send/recv from rank 0. Please check rank 0 logs for "
                             "faulty rank. (" +
                             error.what() + ")"});
  }
}

void MonitoredBarrier::collect_at_root(Clock::time_point deadline, Millis timeout,
                                       bool wait_all_ranks) {
  const std::uint64_t number = barriers_++;
  const Millis limit = std::max(left_until(deadline), Millis(1));  // of each message
  const std::int32_t size = group_.numbers().size;
  std::vector<at::Tensor> tokens(static_cast<std::size_t>(size));
  std::vector<WorkPtr> works(static_cast<std::size_t>(size));
  at::Tensor asks = word_of(kIsThere, number);
  for (const auto rank : c10::irange(1, size)) {
    const auto place = static_cast<std::size_t>(rank);
    tokens[place] = at::zeros({1}, at::kByte);
    works[place] = group_.message(OpKind::recv, tokens[place], rank, kToRoot + number, limit);
    group_.message(OpKind::send, asks, rank, kFromRoot,
                   limit);  // its outcome shows in the answer's
  }
  std::string missing;
  ErrorCode code = ErrorCode::timed_out;
  for (const auto rank : c10::irange(1, size)) {
    const Millis left = left_until(deadline);
    WorkPtr& work = works[static_cast<std::size_t>(rank)];
    const bool late = left == Millis::zero() && !work->isCompleted();
    if (late && missing.empty() && !wait_all_ranks) {
      raise({ErrorCode::timed_out, "[Rank 0]: Rank 0 timed out in monitoredBarrier after " +
                                       std::to_string(timeout.count()) + " ms, before rank " +
                                       std::to_string(rank) + " came"});
    }
    try {
      work->wait(std::max(left, Millis(1)));
    } catch (const PcclError& error) {
      code = error.code();
      add_to_list(missing, std::to_string(rank));
      if (!wait_all_ranks) break;
    }
  }
  if (!missing.empty()) {
    raise({code, std::string("[Rank 0]: ") + (wait_all_ranks ? "Ranks " : "Rank ") + missing +
                     " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) +
                     " ms"});
  }
  at::Tensor lets_go = word_of(kGoesOn, number);
  for (const auto rank : c10::irange(1, size)) {
    works[static_cast<std::size_t>(rank)] =
        group_.message(OpKind::send, lets_go, rank, kFromRoot, limit);
  }
  for (const auto rank : c10::irange(1, size)) {
    try {
      works[static_cast<std::size_t>(rank)]->wait(limit);
    } catch (const PcclError& error) {
      // This rank has come. It may have gone on, and left, before its word was confirmed.
      if (error.code() != ErrorCode::peer_lost) throw;
    }
  }
}

}  // namespace pccl
