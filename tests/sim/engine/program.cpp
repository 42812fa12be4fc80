// The program of a member: joins, and then steps of collectives and messages between boundaries,
// or calls that are all alike. What is called in a step follows from its number, so that all
// members call the same.
#include <algorithm>
#include <utility>

#include "member.h"

namespace pccl::sim {
namespace {

/// The numbering that the caller saw goes with its request.
template <typename Request, typename View>
void number(Request& request, const View& view) {
  if constexpr (requires { request.numbering = view.numbering; }) {
    request.numbering = view.numbering;
  }
}

constexpr std::uint64_t kMessageMs = 60000;  // time-outs of messages
constexpr std::uint64_t kAgainMs = 5000;
constexpr std::uint64_t kUnmetTag = 9;
constexpr std::size_t kBytes[] = {16, 200, 1500, 9000};  // of messages

constexpr OpKind kKinds[] = {OpKind::all_reduce,     OpKind::all_reduce, OpKind::all_reduce,
                             OpKind::reduce_scatter, OpKind::broadcast,  OpKind::all_gather,
                             OpKind::gather,         OpKind::scatter,    OpKind::reduce,
                             OpKind::all_to_all,     OpKind::barrier};

}  // namespace

Task Member::main() {
  if (!plan_.world.empty()) co_return co_await fixed();
  doing_ = "joins";
  JoinOptions join;
  join.masters = plan_.masters;
  join.timeout_ms = 240000;
  auto joined = std::make_shared<Ticket>();
  core_->join(join, joined, [this](const GroupEvent& event) {
    if (event.what == GroupEvent::What::epoch) {
      book_.joined(id_, ring_of(view_));
      time_.say(&process_, "epoch " + to_string(event.epoch) + ", " +
                               std::to_string(event.members) + " members");
    }
  });
  co_await done(joined);
  if (joined->error().failed()) co_return finish("not joined: " + joined->error().text);
  if (!plan_.boundaries) {
    if (plan_.several_threads) {
      tasks_.push_back(std::make_unique<Task>(calls_alike(1)));
      tasks_.back()->begin();
    }
    co_await calls_alike(0);
    const std::function<bool()> ended = [this] { return threads_ == 0; };
    co_await until(ended);
    co_await stay();
    co_return finish(leaves_                  ? "left"
                     : view_.failure.failed() ? "lost its group: " + view_.failure.text
                                              : "all steps");
  }
  while (true) {
    co_await refresh();
    if (boundary_error_.failed()) co_return finish("refresh: " + boundary_error_.text);
    if (boundary_.left) co_return finish("left");
    book_.entered(id_, boundary_.step, state_, "state " + std::to_string(state_));
    time_.say(&process_, "enters step " + std::to_string(boundary_.step));
    if (boundary_.step > plan_.steps) {
      co_await stay();
      co_return finish("all steps");
    }
    if (leaves_) {
      core_->elastic()->leave(time_.hit(50));
      leaves_ = false;
    }
    co_await step(boundary_.step);
    if (core_->elastic() == nullptr || view_.failure.failed()) {
      co_return finish("lost its group: " + view_.failure.text);
    }
    ++revision_;
    set_state(mixed(state_, boundary_.step));  // what it computes from what all have agreed on
  }
}

/// A relay that ends takes the links of two others with it.
Task Member::stay() {
  ++book_.done;
  while (book_.done < plan_.stay_for) co_await pause(5000);
}

Task Member::step(std::uint64_t number) {
  const std::uint64_t salt = mixed(plan_.seed, number);
  const GroupView at_begin = view_;
  std::vector<std::shared_ptr<Call>> calls;
  const std::uint64_t ops = mixed(salt, 1) % (plan_.ops_max + 1);
  for (std::uint64_t i = 0; i < ops; ++i) {
    co_await call(mixed(salt, 100 + i), calls);
    if (plan_.messages && mixed(salt, 200 + i) % 2 == 0)
      co_await exchange(mixed(salt, 300 + i), 0, kMessageMs);
  }
  // Each is awaited by a thread of its own, and these return in any order.
  for (std::size_t i = calls.size(); i > 1; --i) {
    std::swap(calls[i - 1], calls[time_.chance.below(i)]);
  }
  if (plan_.groups && mixed(salt, 4) % 2 == 0) co_await in_group(mixed(salt, 5), at_begin);
  doing_ = "waits for " + std::to_string(calls.size()) + " operations";
  for (const auto& each : calls) co_await wait(each);
  if (plan_.messages && mixed(salt, 2) % 2 == 0) co_await exchange(mixed(salt, 3), 0, kMessageMs);
}

Task Member::wait(const std::shared_ptr<Call>& call) {
  co_await done(call->ticket);
  ElasticGroup* group = core_->elastic();
  const OpKey op = call->ticket->seen<CollectiveResult>().op;
  if (group == nullptr || op == kNoOp || !group->renumber_pending()->load()) co_return;
  const auto renumbered = std::make_shared<Ticket>();
  group->returned({op, call->ticket->seen<CollectiveResult>().epoch}, renumbered);
  co_await done(renumbered);
}

/// A thread of a program without boundaries: all its calls are alike, and each is made ready
/// before the one before it returns, so with the rank and size of then.
Task Member::calls_alike(std::uint64_t thread) {
  ++threads_;
  std::shared_ptr<Call> before;
  for (std::uint64_t mine = 0; mine < plan_.steps && !leaves_; ++mine) {
    doing_ = "calls " + std::string(kind_name(plan_.kind));
    if (dozes_until_us_ > time_.now_us()) co_await pause(dozes_until_us_ - time_.now_us());
    if (core_->elastic() == nullptr) break;
    GroupView view = view_;
    auto next = prepare(plan_.seed, view);
    if (before) co_await wait(before);
    if (time_.hit(50)) co_await pause(time_.chance.below(500));
    post(next, view);
    before = next;
    if (!time_.hit(40)) {
      co_await wait(next);
      before = nullptr;
      if (next->ticket->error().code == ErrorCode::invalid && !leaves_) --mine;  // call it again
    }
    const std::uint64_t salt = mixed(plan_.seed, 7);
    if (plan_.messages && salt % 2 == 0) co_await exchange(salt, thread, kMessageMs);
  }
  if (before) co_await wait(before);
  --threads_;
}

/// One collective, awaited at once or later.
Task Member::call(std::uint64_t salt, std::vector<std::shared_ptr<Call>>& calls) {
  if (dozes_until_us_ > time_.now_us()) co_await pause(dozes_until_us_ - time_.now_us());
  const GroupView view = view_;
  if (core_->elastic() == nullptr) co_return;
  auto made = prepare(salt, view);
  doing_ = std::string("calls ") + std::string(kind_name(made->descriptor.kind));
  // The call of another thread may come in between.
  if (time_.hit(30)) co_await pause(time_.chance.below(500));
  post(made, view);
  if (time_.hit(40)) {
    co_await wait(made);
  } else {
    calls.push_back(made);
    if (time_.hit(30)) co_await pause(time_.chance.below(2000));
  }
}

std::shared_ptr<Call> Member::prepare(std::uint64_t salt, const GroupView& view, bool odd) {
  auto call = std::make_shared<Call>();
  call->numbering = ranks_of(view);
  const auto own = std::find(call->numbering.begin(), call->numbering.end(), id_);
  call->rank = static_cast<std::int32_t>(own - call->numbering.begin());  // provisional: no rank
  const std::size_t size = call->numbering.size();
  OpDescriptor& d = call->descriptor;
  d.kind = plan_.boundaries ? kKinds[mixed(salt, 1) % std::size(kKinds)] : plan_.kind;
  if (odd && d.kind == OpKind::barrier) d.kind = OpKind::all_reduce;
  constexpr DType kTypes[] = {DType::i32, DType::i64, DType::f32, DType::u8};
  d.dtype = kTypes[mixed(salt, 2) % std::size(kTypes)];
  constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min};
  const bool reduces =
      d.kind == OpKind::all_reduce || d.kind == OpKind::reduce || d.kind == OpKind::reduce_scatter;
  if (reduces) {
    d.reduce = kOps[mixed(salt, 3) % std::size(kOps)];
    if (d.dtype == DType::f32 && mixed(salt, 4) % 2 == 0) d.reduce = ReduceOp::avg;
  }
  // In one walk of five; none of seeds.txt is among these, so their walks are what they were.
  if (d.kind == OpKind::all_reduce && mixed(plan_.seed, 23) % 5 == 0) {
    constexpr auto kKindsOfCodes = static_cast<std::uint64_t>(kQuantisationLast) + 1;
    d.dtype = DType::f32;
    d.reduce = mixed(salt, 4) % 2 == 0 ? ReduceOp::avg : ReduceOp::sum;
    d.quantisation = static_cast<Quantisation>(mixed(salt, 16) % kKindsOfCodes);  // or exact
  }
  const bool rooted = d.kind == OpKind::broadcast || d.kind == OpKind::gather ||
                      d.kind == OpKind::scatter || d.kind == OpKind::reduce;
  const bool odd_root = odd && rooted && mixed(salt, 15) % 2 == 0;
  if (rooted) d.root = static_cast<std::int32_t>((mixed(salt, 5) + (odd_root ? 1 : 0)) % size);
  const std::size_t limit = mixed(salt, 6) % 3 == 0 ? plan_.bytes_max : 300;
  const std::size_t count =
      1 + mixed(salt, 7) % (limit / dtype_bytes(d.dtype)) + (odd && !odd_root ? 1 : 0);
  const std::size_t bytes = count * dtype_bytes(d.dtype);
  d.count = count;
  call->salt = mixed(id_.value, ++salts_) >> 16;
  const bool at_root = d.root == call->rank;
  std::size_t inputs = 1;
  std::size_t outputs = 1;
  switch (d.kind) {
    case OpKind::barrier:
      inputs = outputs = 0;
      d.count = 0;
      d.dtype = DType::bytes;
      break;
    case OpKind::broadcast:
      inputs = at_root ? 1 : 0;
      break;
    case OpKind::reduce:
      outputs = at_root ? 1 : 0;
      break;
    case OpKind::all_gather:
      outputs = size;
      break;
    case OpKind::gather:
      outputs = at_root ? size : 0;
      break;
    case OpKind::scatter:
      inputs = at_root ? size : 0;
      break;
    case OpKind::reduce_scatter:
      inputs = size;
      break;
    case OpKind::all_to_all:
      inputs = outputs = size;
      break;
    default:
      break;
  }
  for (std::size_t i = 0; i < inputs; ++i) {
    call->inputs.push_back(filled(bytes, call->salt_of(i), d.dtype));
  }
  for (std::size_t i = 0; i < outputs; ++i) {
    call->outputs.push_back(filled(bytes, call->salt * 77 + i, DType::bytes));
  }
  call->in_place = d.kind == OpKind::all_reduce && call->salt % 2 == 0;
  call->before = call->in_place ? call->inputs : call->outputs;
  call->ticket = std::make_shared<Ticket>();
  return call;
}

void Member::post(const std::shared_ptr<Call>& call, const GroupView& view, GroupId group_id) {
  Group* group = core_->find(group_id);
  if (group == nullptr) {
    call->ticket->complete({ErrorCode::closed, "the group has been closed"});
    return;
  }
  OpRequest request;
  request.descriptor = call->descriptor;
  for (Memory& input : call->inputs) request.inputs.push_back({input.data(), input.size()});
  for (Memory& output : call->outputs) request.outputs.push_back({output.data(), output.size()});
  if (call->in_place) request.outputs = request.inputs;
  request.timeout_ms = group_id == kElasticGroup ? plan_.op_timeout_ms : plan_.group_ms;
  request.keep_alive = call;
  call->group = group_id;
  number(request, view);
  book_.issued(id_, call);
  time_.say(&process_, "calls " + describe(call->descriptor) + ", rank " +
                           std::to_string(call->rank) + " of " +
                           std::to_string(call->numbering.size()));
  call->ticket->on_done([this, call, posted_us = time_.now_us(), limit = request.timeout_ms] {
    if (!process_.alive()) return;
    ++call->completions;
    judge_time(posted_us, limit, std::string(kind_name(call->descriptor.kind)));
    const Error error = call->ticket->error();
    time_.say(&process_, to_string(call->ticket->seen<CollectiveResult>().op) + " " +
                             (error.failed() ? "fails: " + error.text : "is committed"));
    book_.ended(id_, *call);
  });
  group->post(std::move(request), call->ticket);
}

std::shared_ptr<Message> Member::post_message(const Mailing& by, bool send, std::int32_t other,
                                              std::uint64_t tag, std::size_t bytes) {
  const GroupView& view = by.view;
  auto message = std::make_shared<Message>();
  message->group = by.group;
  message->place = by.place;
  message->members = ranks_of(view);
  message->unmet = tag == kUnmetTag;
  const PeerId there = other < 0 ? PeerId{} : ranks_of(view).at(static_cast<std::size_t>(other));
  message->from = send ? id_ : there;
  message->to = send ? there : id_;
  message->tag = tag;
  message->bytes = filled(bytes, send ? mixed(id_.value, ++salts_) : 1, DType::bytes);
  if (!send) message->before = message->bytes;
  message->posted_ms = time_.now_us() / 1000;
  message->ticket = std::make_shared<Ticket>();
  OpRequest request;
  request.descriptor.kind = send ? OpKind::send : OpKind::recv;
  request.descriptor.count = bytes;
  auto& buffers = send ? request.inputs : request.outputs;
  buffers.push_back({message->bytes.data(), bytes});
  request.peer = other;
  request.tag = tag;
  request.timeout_ms = by.timeout_ms;
  request.keep_alive = message;
  number(request, view);
  const std::string what = std::string(send ? "send to rank " : "recv from rank ") +
                           std::to_string(other) + " tag " + std::to_string(tag) + ", " +
                           std::to_string(bytes) + " bytes";
  Group* group = core_->find(by.group);
  if (group == nullptr) {
    message->ticket->complete({ErrorCode::closed, "the group has been closed"});
    return message;
  }
  time_.say(&process_, what);
  if (send) {
    book_.sent(message);
  } else {
    book_.receives(message);
  }
  message->ticket->on_done([this, message, send, what, limit = by.timeout_ms] {
    if (!process_.alive()) return;
    ++message->completions;
    judge_time(message->posted_ms * 1000, limit, what);
    message->ended_ms = time_.now_us() / 1000;
    const auto* of = core_ ? core_->elastic() : nullptr;
    if (message->group == kElasticGroup) {
      message->epoch = of != nullptr ? of->view().epoch : view_.epoch;
    }
    const Error error = message->ticket->error();
    time_.say(&process_, what + (error.failed() ? " fails: " + error.text : " is done"));
    if (send) {
      book_.send_ended(*message);
    } else {
      book_.receive_ended(*message);
    }
  });
  group->post(std::move(request), message->ticket);
  return message;
}

/// One that perhaps nobody meets.
std::shared_ptr<Message> Member::post_unmet(Mailing by) {
  const auto size = static_cast<std::int32_t>(ranks_of(by.view).size());
  const bool send = time_.hit(50);
  by.timeout_ms = 3000;
  return post_message(by, send, (by.view.rank + (send ? 1 : size - 1)) % size, kUnmetTag,
                      kBytes[time_.chance.below(4)]);
}

/// Each rank sends to the next and receives from the one before, several messages with the same
/// tag, small and large, in any order. `thread` has its own tags; of a group that is not the
/// elastic one: the place among its collectives.
Task Member::exchange(std::uint64_t salt, std::uint64_t thread, std::uint64_t timeout_ms,
                      GroupId group_id) {
  if (core_->find(group_id) == nullptr) co_return;
  const bool elastic = group_id == kElasticGroup;
  Mailing by{group_id, elastic ? view_ : core_->find(group_id)->view(), 0, timeout_ms};
  if (!elastic) by.place = std::exchange(thread, 0);
  const auto size = static_cast<std::int32_t>(ranks_of(by.view).size());
  if (size < 2) co_return;
  doing_ = "exchanges messages";
  const std::uint64_t count = 1 + mixed(salt, 1) % 3;
  const std::uint64_t tag = 10 * thread + 1 + mixed(salt, 2) % 2;
  const bool any = plan_.any_source && mixed(salt, 3) % 3 == 0;
  std::vector<std::shared_ptr<Message>> messages;
  std::vector<bool> order;  // true: a send
  for (std::uint64_t i = 0; i < count; ++i) {
    order.push_back(true);
    order.push_back(false);
  }
  for (std::size_t i = order.size(); i > 1; --i) {
    const std::size_t j = time_.chance.below(i);
    const bool swapped = order[i - 1];
    order[i - 1] = order[j];
    order[j] = swapped;
  }
  std::uint64_t sends = 0;
  std::uint64_t receives = 0;
  const auto bytes_of = [&](std::uint64_t i) {
    const std::size_t bytes = kBytes[mixed(salt, 10 + i) % std::size(kBytes)];
    return any ? kBytes[mixed(salt, 10) % 4] : bytes;
  };
  for (const bool send : order) {
    if (time_.hit(20)) co_await pause(time_.chance.below(1500));
    if (core_->find(group_id) == nullptr) break;
    if (send) {
      messages.push_back(post_message(by, true, (by.view.rank + 1) % size, tag, bytes_of(sends++)));
    } else {
      const std::int32_t from = any ? -1 : (by.view.rank + size - 1) % size;
      messages.push_back(post_message(by, false, from, tag, bytes_of(receives++)));
    }
  }
  if (core_->find(group_id) != nullptr && time_.hit(10)) messages.push_back(post_unmet(by));
  bool lost = false;
  for (const auto& message : messages) {
    co_await done(message->ticket);
    lost = lost || message->ticket->error().code == ErrorCode::peer_lost;
  }
  // Once more in the next epoch: alike, for those whose neighbours do so too.
  if (lost && elastic && timeout_ms != kAgainMs && time_.hit(70))
    co_await exchange(salt, thread, kAgainMs);
}

}  // namespace pccl::sim
