// Every queue, list, retry and wait has a limit with a name. The limits that no user needs to
// change are here; the others are options (csrc/engine/options.h, csrc/master/options.h,
// pccl_backend/_config.py).
#pragma once

#include <cstddef>
#include <cstdint>

namespace pccl {

// Messages.
// One control message (store values are large).
inline constexpr std::size_t kControlBytesMax = 64U << 20;
// Before a peer is trusted: a Hello with its report.
inline constexpr std::size_t kHandshakeBytesMax = 256U << 10;
// One control message between two peers: numbers and an error text.
inline constexpr std::size_t kPeerMessageBytesMax = 64U << 10;
inline constexpr std::size_t kRunNameBytesMax = 128;
inline constexpr std::size_t kTokenNameBytesMax = 64;
inline constexpr std::size_t kNameBytesMax = 64;     // of a member or a host, for people
inline constexpr std::size_t kPackageBytesMax = 64;  // the version of a package
inline constexpr std::size_t kUnknownDepthMax = 16;  // nesting of an unknown field that is skipped
inline constexpr std::size_t kTextBytesMax = 4096;   // error texts and reasons
inline constexpr std::size_t kTriedLinksMax = 256;   // in one message about links
inline constexpr std::size_t kTriedReasonBytesMax = 512;  // why one of them did not come up
inline constexpr std::size_t kAddressesMax = 16;
inline constexpr std::size_t kAddressBytesMax = 300;
inline constexpr std::size_t kMembersMax = 4096;
// Pairs of members that reach each other over a third.
inline constexpr std::size_t kRelaysMax = 4096;
inline constexpr std::size_t kStatusMembersMax = 1024;  // in an answer; and as many at the door
inline constexpr std::size_t kStatusEventsMax = 10;
inline constexpr std::size_t kStatusRunsMax = 64;
inline constexpr std::size_t kStatusTextBytesMax = 256;
inline constexpr std::size_t kReportOpsMax = 65536;
inline constexpr std::size_t kReportFlagsMax = 256;
inline constexpr std::uint64_t kStepMax = 1ULL << 62;  // of steps, and of operations of a step
inline constexpr std::size_t kStoreKeyBytesMax = 4096;
inline constexpr std::size_t kStoreKeysMax = 4096;  // in one request

// Data.
// Facts of docs/architecture/costs.md: 1 MiB is best on loopback and LAN.
inline constexpr std::size_t kSegmentBytesMax = 1U << 20;
// Over a short line a part goes in so many segments, of a power of two of bytes and no less than
// that.
inline constexpr std::size_t kSegmentsOfPart = 4;
inline constexpr std::size_t kNearSegmentBytesMin = 128U << 10;
inline constexpr std::size_t kSmallSegmentBytesMax = 64U
                                                     << 10;  // up to here the small lane is used
inline constexpr std::size_t kSliceBytes = 64U << 10;        // of a segment over a long line
// Segments of one link of which some slices have arrived: as many as slow lanes can hold up.
inline constexpr std::size_t kSlicedSegmentsMax = 16384;
// The area of a process, which the other processes of its machine read: in slots of one segment
// each. Pages are taken as slots are. An all-reduce has so many segments of each part
// under way, and so many slots for them; other operations have twice as many slots.
inline constexpr std::size_t kAreaSlotBytes = 128U << 10;
inline constexpr std::uint32_t kAreaSlots = 128;
inline constexpr std::uint32_t kAreaDepth = 3;
// Of two ranks a ring moves no more.
inline constexpr std::uint32_t kAreaRanksMin = 3;
// Large operations of a group that go through areas at once.
inline constexpr std::uint32_t kThroughAreasMax = 2;
// More ranks than that do not go through areas: in an all-reduce each of them holds kAreaDepth
// slots for each rank.
inline constexpr std::uint32_t kAreaRanksMax = 16;
// Of an operation that goes through areas, by rank. The parts of a smaller one stay in the caches,
// and take fewer messages in a ring.
inline constexpr std::size_t kAreaBytesMinPerRank = 2U << 20;
// A quantised all-reduce codes half a segment of float32 values at a time, and has this many under
// way at once, over all ranks that add; with its scratch memory twice as many codes.
inline constexpr std::size_t kQuantisedChunkValues = 1U << 17;
inline constexpr std::size_t kQuantisedChunksMax = 128;
// Of all parts together, or by rank, if that is more: goes straight to its receivers.
inline constexpr std::size_t kDirectBytesMax = 256U << 10;
inline constexpr std::size_t kDirectBytesMaxPerRank = 4U << 10;
// What two ranks exchange whole. Of more each would add up all of it, where a ring adds up half.
inline constexpr std::size_t kTwoExchangeBytesMax = 1U << 20;
// Mbit/s of the line that far ranks have in common, where it is not measured. Over faster lines a
// ring is taken sooner than it would have to be, over slower ones later.
inline constexpr std::uint32_t kMbitAssumed = 100;
// Per peer, sent for operations not issued there.
inline constexpr std::size_t kUngrantedBytesMax = 64U << 20;
inline constexpr std::size_t kKeptBytesMin = 4096;  // a smaller kept segment counts as so many
// Of one link, at its receiver: two windows (an epoch that runs and one that has been accepted),
// the small sends and the announcements of both, and 32 MiB for other messages.
inline constexpr std::size_t kKeptBytesMax = 256U << 20;
inline constexpr std::size_t kKeptMessageBytes = 256;  // a waiting message counts as so many
inline constexpr std::size_t kUnreadMessageBytesMax = 128U << 20;  // to a peer that goes on sending
inline constexpr std::size_t kEagerSendsMax = 256;  // small sends to one peer, not received yet
// Sends that are announced to one peer, and for which that peer has not called a receive yet.
inline constexpr std::size_t kAnnouncedSendsMax = 131072;
// Of one peer to another, under way over a third.
inline constexpr std::size_t kRelayWindowBytes = 16U << 20;
inline constexpr std::uint64_t kSealsOfOneKey = 1U << 16;  // then a relayed link has the next key
// Large segments that are late over a third peer, while later ones have come.
inline constexpr std::size_t kRelayMissingMax = 16384;
inline constexpr std::uint64_t kRelayMissingMs = 30000;  // and for how long at most
// Other ends that one opening of a relayed link answers.
inline constexpr std::size_t kRelayOpeningsMax = 256;

// Connections.
inline constexpr std::uint64_t kHandshakeMs = 5000;  // from accept to a complete handshake
// A dialler whose packets of full size are without an answer for so long, and four round trips,
// goes on with small ones.
inline constexpr std::uint64_t kFullPacketMs = 1000;
inline constexpr std::uint64_t kSmallPathMs = 600000;  // links made anew are so from the start
// Of such a connection, and of all to a master, whose messages are small: the payload of a packet.
// With it an IP packet is not longer than the 1,280 bytes that every IPv6 path carries.
inline constexpr std::uint32_t kSmallPacketPayloadBytes = 1220;
inline constexpr std::uint64_t kJoinMs = 30000;  // a lane that has not joined its link is given up
inline constexpr std::size_t kLanesMax = 129;    // of a link: the small one and 128 bulk lanes
inline constexpr int kAcceptBacklog = 1024;
// Free descriptors that lanes beyond the first leave for the rest. Newcomers at a master leave
// twice as many.
inline constexpr std::size_t kDescriptorsLeft = 256;
// A closed link is back by then, or its peer is gone.
inline constexpr std::uint64_t kRedialMs = 3000;
inline constexpr std::uint64_t kBackoffMsMin = 50;
inline constexpr std::uint64_t kBackoffMsMax = 1000;
// A master that has not yet sent its Welcome is given up after so long without a sign of life.
inline constexpr std::uint64_t kMuteMs = 5000;

// Shared state. A source is given up when it has sent nothing for kPullIdleMs, or when an item
// takes longer than kPullGraceMs and the time of its bytes at kPullBytesPerSecondMin.
inline constexpr std::uint64_t kPullIdleMs = 15000;
inline constexpr std::uint64_t kPullGraceMs = 30000;
inline constexpr std::uint64_t kPullBytesPerSecondMin = 1U << 20;

// Waiting.
inline constexpr std::uint64_t kSayWaitingMs = 5000;  // a longer wait logs the peers it waits for
// Lines of one look at operations that wait, or at sends and receives; one more counts the rest.
inline constexpr std::size_t kSaidAtOnceMax = 3;
// A longer wait asks the other peers which operations they have called.
inline constexpr std::uint64_t kAskMs = 1000;
inline constexpr std::uint64_t kProbeMs = 1000;  // between two questions for a sign of life
// After an operation's time-out: the wait for the answers to "have you issued it?"
inline constexpr std::uint64_t kMissingReplyMs = 500;

}  // namespace pccl
