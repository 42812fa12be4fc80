// The packets of the emulator, as the kernel hands them over through a TUN device: whole ones, and
// super-packets that stand for several TCP segments, which can be taken apart here.
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

using Nanos = double;  // time since this process started; a double keeps fractions at high rates

constexpr size_t kMaxPacket = 65535;  // of an IP packet, super-packets included

inline uint16_t get16(const uint8_t* p) { return uint16_t(p[0] << 8 | p[1]); }
inline void put16(uint8_t* p, uint32_t v) { p[0] = uint8_t(v >> 8), p[1] = uint8_t(v); }
inline uint32_t get32(const uint8_t* p) { return uint32_t(get16(p)) << 16 | get16(p + 2); }
inline void put32(uint8_t* p, uint32_t v) { put16(p, v >> 16), put16(p + 2, v); }

// One's complement sum of 16-bit words, as in all internet checksums.
inline uint32_t sum_words(const uint8_t* p, size_t bytes, uint32_t sum = 0) {
  for (size_t i = 0; i + 1 < bytes; i += 2) sum += get16(p + i);
  return sum;
}
inline uint32_t fold(uint32_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

// What the TUN device puts before each packet (struct virtio_net_hdr, whose kernel header is not
// C++).
struct VirtioHeader {
  uint8_t flags, segmentation;
  uint16_t header_length, segment_payload, checksum_start, checksum_offset;
  enum : uint8_t { kWhole = 0, kWindowReducedInFirst = 128 };  // values of `segmentation`
};

// One IP packet, or a super-packet that stands for several TCP segments.
struct Packet {
  uint8_t size_class;  // of this buffer, for PacketPool
  bool in_downlink;    // has passed the receiver's downlink, waits for its turn to be delivered
  uint16_t source, target;  // host indices
  uint32_t length;          // of `data`
  Nanos segment_spacing;    // time between its segments on the wire
  uint16_t padding_[3];  // puts the virtio header right before `data`, as the TUN device wants it
  VirtioHeader virtio;
  uint8_t data[];

  // Header and data, as they go through the TUN device.
  uint8_t* frame() { return reinterpret_cast<uint8_t*>(this) + offsetof(Packet, virtio); }
};
static_assert(offsetof(Packet, data) == offsetof(Packet, virtio) + sizeof(VirtioHeader));

// Buffers in power-of-two sizes, used again and again.
class PacketPool {
 public:
  Packet* take(size_t data_bytes) {
    const size_t bytes = sizeof(Packet) + data_bytes;
    int size_class = kSmallest;
    while ((size_t(1) << size_class) < bytes) ++size_class;
    auto& spare = spare_[size_class];
    Packet* packet;
    if (spare.empty()) {
      packet = static_cast<Packet*>(malloc(size_t(1) << size_class));
      if (!packet) throw std::bad_alloc();
    } else {
      packet = spare.back();
      spare.pop_back();
    }
    packet->size_class = uint8_t(size_class);
    packet->in_downlink = false;
    packet->length = uint32_t(data_bytes);
    packet->segment_spacing = 0;
    return packet;
  }
  void give_back(Packet* packet) { spare_[packet->size_class].push_back(packet); }
  Packet* copy(const Packet& original) {
    Packet* twin = take(original.length);
    const uint8_t size_class = twin->size_class;
    memcpy(twin, &original, sizeof(Packet) + original.length);
    twin->size_class = size_class;
    return twin;
  }
  // A small packet in a large buffer moves to a fitting one.
  Packet* fitted(Packet* packet) {
    if ((sizeof(Packet) + packet->length) * 2 > size_t(1) << packet->size_class) return packet;
    Packet* smaller = copy(*packet);
    give_back(packet);
    return smaller;
  }

 private:
  static constexpr int kSmallest = 8;  // 256 bytes
  std::vector<Packet*> spare_[18];
};

// The segments in which a packet travels on the wire.
struct Segments {
  uint32_t header, payload, payload_each, count = 1;

  explicit Segments(const Packet& packet) {
    if (packet.virtio.segmentation == VirtioHeader::kWhole || packet.virtio.segment_payload == 0) {
      header = 0, payload = payload_each = packet.length;
      return;
    }
    const uint32_t tcp = packet.virtio.checksum_start;
    header = std::min(tcp + (packet.data[tcp + 12] >> 4) * 4u, packet.length);
    payload = packet.length - header;
    payload_each = packet.virtio.segment_payload;
    count = std::max(1u, (payload + payload_each - 1) / payload_each);
  }
  uint32_t bytes(uint32_t k) const {
    return header + std::min(payload_each, payload - k * payload_each);
  }
  uint32_t total_bytes() const { return payload + count * header; }
};

// The TCP header of a packet, if it has one.
class TcpView {
 public:
  explicit TcpView(const Packet& packet) {
    constexpr uint8_t kTcp = 6;
    const uint8_t* ip = packet.data;
    const bool v4 = ip[0] >> 4 == 4;
    const uint32_t start = v4 ? (ip[0] & 15) * 4u : 40;
    if (packet.length >= start + 20 && ip[v4 ? 9 : 6] == kTcp) header_ = ip + start;
  }
  bool there() const { return header_ != nullptr; }
  uint32_t ports() const { return get32(header_); }
  bool uses(double port) const { return get16(header_) == port || get16(header_ + 2) == port; }
  bool opens() const { return (header_[13] & 2) != 0; }  // SYN

 private:
  const uint8_t* header_ = nullptr;
};

// A packet of its own with `count` neighbouring segments out of a super-packet.
inline Packet* extract(PacketPool& pool, const Packet& whole, const Segments& segments,
                       uint32_t first, uint32_t count) {
  const uint32_t offset = first * segments.payload_each;
  const uint32_t payload = std::min(count * segments.payload_each, segments.payload - offset);
  Packet* part = pool.take(segments.header + payload);
  part->source = whole.source, part->target = whole.target;
  part->virtio = whole.virtio;
  if (count == 1)
    part->virtio.segmentation = VirtioHeader::kWhole, part->virtio.segment_payload = 0;
  memcpy(part->data, whole.data, segments.header);
  memcpy(part->data + segments.header, whole.data + segments.header + offset, payload);

  uint8_t* ip = part->data;
  uint8_t* tcp = ip + whole.virtio.checksum_start;
  uint32_t addresses;
  if (ip[0] >> 4 == 4) {
    put16(ip + 2, part->length);
    put16(ip + 4, get16(ip + 4) + first);
    put16(ip + 10, 0);
    put16(ip + 10, ~fold(sum_words(ip, (ip[0] & 15) * 4u)));
    addresses = sum_words(ip + 12, 8);
  } else {
    put16(ip + 4, part->length - 40);
    addresses = sum_words(ip + 8, 32);
  }
  put32(tcp + 4, get32(tcp + 4) + offset);
  enum : uint8_t { kFin = 1, kPush = 8, kWindowReduced = 128 };
  if (first > 0) {
    tcp[13] &= uint8_t(~kWindowReduced);
    part->virtio.segmentation &= uint8_t(~VirtioHeader::kWindowReducedInFirst);
  }
  if (first + count < segments.count) tcp[13] &= uint8_t(~(kFin | kPush));
  // The receiving kernel does not check the payload; here belongs the sum of the pseudo-header.
  put16(tcp + 16, fold(addresses + IPPROTO_TCP + (part->length - whole.virtio.checksum_start)));
  return part;
}
