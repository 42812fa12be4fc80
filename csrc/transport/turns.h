// Whose turn it is to move bytes. A hundred connections that bring data at once keep a thread busy
// for a tenth of a second; messages and small operations must not wait for all of them. So what
// moves much (a Mover: a bulk lane) enters here when it can, and all that have entered share 4 ms
// of each round of the loop, in the order in which they came.
//
// A turn is made of steps, and only the middle of a step is work that takes long: system calls,
// encryption, checksums. Where the loop has helpers (helpers.h), several movers have their turn at
// once, each on its own thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace pccl {

class Helpers;

/// `prepare`, `settle` and `rest` are called on the loop's thread; they may call whom they like,
/// may end movers, and let others enter. It leaves before it goes.
class Mover {
 public:
  Mover() = default;
  virtual ~Mover() = default;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  /// Makes a step ready. False: there is nothing to move, and the turn ends.
  [[nodiscard]] virtual bool prepare() = 0;
  /// Moves bytes, and returns how many. On any thread, while the loop's thread waits, and beside
  /// `move` of other movers: it touches nothing that another one has.
  [[nodiscard]] virtual std::size_t move() = 0;
  /// Tells others what has been moved.
  virtual void settle() = 0;
  /// The turn has ended, by `prepare` or because its time is over.
  virtual void rest() = 0;

 private:
  friend class Turns;
  bool waits_ = false;  // for its turn
  // The most in one step, of this turn and of the one before: the last step of most moves nothing.
  std::size_t largest_ = 0;
  std::size_t largest_before_ = 0;
};

/// Used on the loop's thread.
class Turns {
 public:
  /// Waits for its next turn; nothing happens if it does so already.
  void enter(Mover& mover);
  /// Neither waits for a turn nor has one any more.
  void leave(Mover& mover);
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  /// Does some mover have its turn?
  [[nodiscard]] bool serving() const { return !served_.empty(); }
  /// Gives each of those that wait now one turn, until `now_ns` says that 4 ms are over: the others
  /// come first in the next round.
  void serve(Helpers& helpers, std::uint64_t (*now_ns)());

 private:
  void begin(std::size_t count);
  void step(Helpers& helpers);

  std::deque<Mover*> waiting_;
  std::vector<Mover*> served_;  // their turn; null: has left it
};

}  // namespace pccl
