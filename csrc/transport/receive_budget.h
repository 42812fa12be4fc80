// How much memory the large frames that arrive over several connections may take together. Pure
// bookkeeping: a connection takes a Share for each large frame, and reads on when it is granted. A
// frame holds its whole length, so that one that has begun to come always can be ended.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <utility>

namespace pccl {

/// Used on one thread.
class ReceiveBudget {
 public:
  /// The bytes of one frame; its end returns the bytes. Shares are granted in the order in which
  /// they were asked for: a small one does not pass a large one, which would never have its turn.
  class Share {
   public:
    /// `granted` is called when the bytes, which could not be had at once, can. It must not take or
    /// end a Share.
    Share(std::shared_ptr<ReceiveBudget> all, std::size_t bytes, std::function<void()> granted)
        : all_(std::move(all)), bytes_(bytes), granted_(std::move(granted)) {
      at_ = all_->waiting_.insert(all_->waiting_.end(), this);
      all_->grant(this);
    }
    ~Share() {
      if (waits_) {
        all_->waiting_.erase(at_);
      } else {
        all_->taken_ -= bytes_;
      }
      all_->grant(nullptr);
    }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    [[nodiscard]] bool waits() const { return waits_; }

   private:
    friend class ReceiveBudget;
    std::shared_ptr<ReceiveBudget> all_;
    std::size_t bytes_;
    std::function<void()> granted_;
    std::list<Share*>::iterator at_;
    bool waits_ = true;
  };

  /// A frame is at most as long as `bytes_max`.
  explicit ReceiveBudget(std::size_t bytes_max) : bytes_max_(bytes_max) {}
  [[nodiscard]] bool any_waits() const { return !waiting_.empty(); }
  [[nodiscard]] std::size_t taken() const { return taken_; }

 private:
  /// `asks` hears of its grant by its constructor.
  void grant(const Share* asks) {
    while (!waiting_.empty() && waiting_.front()->bytes_ <= bytes_max_ - taken_) {
      Share& next = *waiting_.front();
      waiting_.pop_front();
      next.waits_ = false;
      taken_ += next.bytes_;
      if (&next != asks) next.granted_();
    }
  }

  std::size_t bytes_max_;
  std::size_t taken_ = 0;
  std::list<Share*> waiting_;  // oldest first
};

}  // namespace pccl
