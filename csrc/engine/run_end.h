// Whether, and how, this process's part in its run has ended. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace pccl {

/// The first end stays.
class RunEnd {
 public:
  enum class How : std::uint8_t {
    none,      // this process is a member, or waits to become one
    left,      // in good order
    finished,  // all members have said that the run is finished
    failed     // evicted, refused, closed, or without a master for too long
  };

  void leave() { end(How::left, {ErrorCode::closed, "this replica has left the run"}); }
  /// `text` says when the run was finished.
  void finish(std::string text) { end(How::finished, {ErrorCode::closed, std::move(text)}); }
  void fail(Error error) { end(How::failed, std::move(error)); }

  [[nodiscard]] How how() const { return how_; }
  [[nodiscard]] bool over() const { return how_ != How::none; }
  [[nodiscard]] bool failed() const { return how_ == How::failed; }
  /// Without a failure.
  [[nodiscard]] bool in_order() const { return over() && !failed(); }
  /// The error of calls that come after the end. Code none: there is no end yet.
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  void end(How how, Error error) {
    if (over()) return;
    how_ = how;
    error_ = std::move(error);
  }

  How how_ = How::none;
  Error error_;
};

}  // namespace pccl
