#include "wire/cbor.h"

#include "base/text.h"

namespace pccl::cbor {

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string_view cut_utf8(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  std::size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80 && bytes_max - end < 4) {
    --end;
  }
  return text.substr(0, end);
}

void Writer::head(Major major, std::uint64_t number) {
  const auto kind = static_cast<unsigned>(major) << 5;
  if (number < 24) {
    out_.push_back(static_cast<std::byte>(kind | number));
    return;
  }
  unsigned width_log2 = 0;
  if (number > 0xFF) width_log2 = 1;
  if (number > 0xFFFF) width_log2 = 2;
  if (number > 0xFFFFFFFF) width_log2 = 3;
  out_.push_back(static_cast<std::byte>(kind | (24 + width_log2)));
  for (int shift = (8 << width_log2) - 8; shift >= 0; shift -= 8) {
    out_.push_back(static_cast<std::byte>((number >> shift) & 0xFF));
  }
}

void Writer::text(std::string_view text) {
  head(valid_utf8(text) ? Major::text : Major::bytes, text.size());
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  out_.insert(out_.end(), data, data + text.size());
}

void Writer::bytes(std::span<const std::uint8_t> bytes) {
  head(Major::bytes, bytes.size());
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  out_.insert(out_.end(), data, data + bytes.size());
}

void Reader::fail(std::string_view what) {
  if (!ok()) return;
  error_ =
      std::string(what) + " at byte " + std::to_string(at_) + " of " + std::to_string(in_.size());
}

std::uint64_t Reader::head(Major major, std::string_view expected) {
  if (!ok()) return 0;
  if (at_ == in_.size()) {
    fail("it ends too early");
    return 0;
  }
  const auto first = static_cast<unsigned>(in_[at_]);
  if (first >> 5 != static_cast<unsigned>(major)) {
    fail("not " + std::string(expected));
    return 0;
  }
  const unsigned info = first & 31;
  if (info < 24) {
    ++at_;
    return info;
  }
  if (info > 27) {
    fail("a head of a form that is not used");
    return 0;
  }
  const std::size_t width = std::size_t{1} << (info - 24);
  if (in_.size() - at_ - 1 < width) {
    fail("it ends too early");
    return 0;
  }
  std::uint64_t number = 0;
  for (std::size_t i = 1; i <= width; ++i) {
    number = (number << 8) | static_cast<std::uint64_t>(in_[at_ + i]);
  }
  const std::uint64_t shortest = width == 1 ? 24 : std::uint64_t{1} << (4 * width);
  if (number < shortest) {
    fail("a number that is not in its shortest form");
    return 0;
  }
  at_ += 1 + width;
  return number;
}

std::string_view Reader::text(std::size_t bytes_max) {
  if (!ok()) return {};
  const bool is_text = at_ < in_.size() && static_cast<unsigned>(in_[at_]) >> 5 == 3;
  const std::uint64_t length = head(is_text ? Major::text : Major::bytes, "a text");
  if (!ok()) return {};
  if (length > bytes_max) {
    fail("a text over its limit");
    return {};
  }
  if (length > in_.size() - at_) {
    fail("it ends too early");
    return {};
  }
  const std::string_view view(reinterpret_cast<const char*>(in_.data()) + at_,
                              static_cast<std::size_t>(length));
  if (valid_utf8(view) != is_text) {
    fail(is_text ? "a text that is not UTF-8" : "a byte string where a text is expected");
    return {};
  }
  at_ += view.size();
  return view;
}

std::span<const std::uint8_t> Reader::bytes(std::size_t bytes_max) {
  const std::uint64_t length = head(Major::bytes, "a byte string");
  if (!ok()) return {};
  if (length > bytes_max) {
    fail("a byte string over its limit");
    return {};
  }
  if (length > in_.size() - at_) {
    fail("it ends too early");
    return {};
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(in_.data()) + at_;
  at_ += static_cast<std::size_t>(length);
  return {data, static_cast<std::size_t>(length)};
}

void Reader::name(std::string_view expected) {
  if (!ok()) return;
  const std::size_t start = at_;
  if (text(kTextBytesMax) == expected && ok()) return;
  at_ = start;
  error_.clear();
  fail("expected the field \"" + std::string(expected) + "\"");
}

void Reader::skip(std::size_t depth_left) {
  if (!ok()) return;
  if (at_ == in_.size()) return fail("it ends too early");
  const std::byte first = in_[at_];
  if (first == kFalse || first == kTrue || first == kNull) {
    ++at_;
    return;
  }
  const auto major = static_cast<Major>(static_cast<unsigned>(first) >> 5);
  switch (major) {
    case Major::number:
    case Major::negative:
      static_cast<void>(head(major, "a number"));
      return;
    case Major::bytes:
      static_cast<void>(bytes(in_.size()));
      return;
    case Major::text:
      static_cast<void>(text(in_.size()));
      return;
    case Major::array:
    case Major::map: {
      if (depth_left == 0) return fail("nested too deeply");
      const std::uint64_t count = head(major, "a list or a map");
      // Every entry takes a byte at least, so this ends with the input.
      for (std::uint64_t i = 0; i < count && ok(); ++i) {
        if (major == Major::map) static_cast<void>(text(kTextBytesMax));
        skip(depth_left - 1);
      }
      return;
    }
  }
  fail("a value of a kind that is not used");
}

void Reader::get(bool& value) {
  if (!ok()) return;
  if (at_ == in_.size()) return fail("it ends too early");
  if (in_[at_] != kFalse && in_[at_] != kTrue) return fail("not a boolean");
  value = in_[at_++] == kTrue;
}

void Reader::get(std::int64_t& value) {
  if (!ok()) return;
  const bool negative = at_ < in_.size() && static_cast<unsigned>(in_[at_]) >> 5 == 1;
  const std::uint64_t number = head(negative ? Major::negative : Major::number, "an integer");
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return fail("a number out of range");
  }
  value = static_cast<std::int64_t>(negative ? ~number : number);
}

}  // namespace pccl::cbor
