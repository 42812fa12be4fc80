// A stream of the tests that tells its readiness from the loop, again and again while it lasts.
#pragma once

#include <memory>
#include <utility>

#include "transport/loop.h"
#include "transport/stream.h"

namespace pccl::test {

class LoopStream : public Stream {
 public:
  void on_ready(Ready ready) override {
    ready_ = std::make_shared<Ready>(std::move(ready));
    read_ = write_ = false;
  }
  void want(bool read, bool write) override {
    read_ = read;
    write_ = write;
    look();
  }
  void look() {
    if (told_ || !ready_ || !*ready_ || (!readable() && !writable())) return;
    told_ = true;
    loop_.defer([this, alive = std::weak_ptr(alive_)] {
      if (alive.expired()) return;
      told_ = false;
      const auto ready = ready_;
      if (!ready || (!readable() && !writable())) return;
      (*ready)(readable(), writable());
      if (!alive.expired()) look();
    });
  }

 protected:
  explicit LoopStream(Loop& loop) : loop_(loop) {}
  /// As far as `want` asks for it.
  [[nodiscard]] virtual bool readable() const = 0;
  [[nodiscard]] virtual bool writable() const = 0;
  void tell_no_more() { ready_.reset(); }
  [[nodiscard]] bool wants_read() const { return read_; }
  [[nodiscard]] bool wants_write() const { return write_; }

 private:
  Loop& loop_;
  std::shared_ptr<Ready> ready_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  bool read_ = false;
  bool write_ = false;
  bool told_ = false;
};

}  // namespace pccl::test
