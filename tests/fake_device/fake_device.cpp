// A device for tests, as asynchronous as a GPU: PyTorch's PrivateUse1 under the name "slow". Its
// memory is the host's, its streams are threads with a queue, its kernels and copies take as long
// as a test says. Memory is reused as a caching allocator does it: a block that is freed while
// another stream still uses it is overwritten. Operators that it does not have run on the CPU,
// after the stream. Counts what a backend must not do, and what it must give back. Goes wrong as
// GPUs do where a test says so: calls that do not return, kernels that wait for all streams when
// they are loaded, event queries that fail while a graph is captured.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/cuda/StreamBlock.hpp>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr c10::StreamId kPoolStreams = 8;

std::atomic<std::int64_t> copy_delay_us{0};
std::atomic<std::int64_t> syncs{0};         // somebody has waited for a stream or a device
std::atomic<std::int64_t> device_bytes{0};  // allocated
std::atomic<std::int64_t> pinned_bytes{0};
std::atomic<std::int64_t> pinned_peak{0};
std::atomic<std::int64_t> blocks_made{0};
std::atomic<std::int64_t> blocks_open{0};
std::atomic<bool> fills_held{false};
std::atomic<std::int64_t> block_timeout_ms{0};
std::atomic<std::int64_t> contexts{0};          // bit i: somebody has used device i
std::atomic<std::int64_t> captures_spoiled{0};  // by a query of another thread
std::atomic<std::int64_t> queries_to_fail{0};
std::atomic<bool> copies_fail{false};
std::atomic<bool> copies_hang{false};   // the call of a copy does not return
std::atomic<bool> kernels_load{false};  // a kernel's launch waits until no stream is held
std::atomic<bool> capturing{false};     // the default stream of device 0

constexpr int kGlobalCaptures = 0;
constexpr int kRelaxedCaptures = 2;
thread_local int capture_mode = kGlobalCaptures;

void pause_us(std::int64_t us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

// ------------------------------------------------------------------------------- streams, events

class Queue {
 public:
  Queue() {
    std::thread([this] { run(); }).detach();
  }
  void add(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return jobs_.empty() && !busy_;
  }
  void wait_idle() {
    ++syncs;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.empty() && !busy_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !jobs_.empty(); });
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false;
};

using Queues = std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Queue*>;
auto* const queues_mutex = new std::mutex;
auto* const queues = new Queues;

Queue& queue_of(c10::DeviceIndex device, c10::StreamId stream) {
  const std::lock_guard lock(*queues_mutex);
  Queue*& queue = (*queues)[{device, stream}];
  if (queue == nullptr) queue = new Queue;
  return *queue;
}

void wait_all_idle(c10::DeviceIndex device) {
  Queues all;
  {
    const std::lock_guard lock(*queues_mutex);
    all = *queues;
  }
  for (const auto& [key, queue] : all) {
    if (key.first == device) queue->wait_idle();
  }
}

Queue& queue_of(const c10::Stream& stream) { return queue_of(stream.device_index(), stream.id()); }

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

Queue& current_queue(c10::DeviceIndex device) {
  return queue_of(device, current_streams.at(static_cast<std::size_t>(device)));
}

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0;
  std::uint64_t done = 0;
};
using EventPtr = std::shared_ptr<Event>;

EventPtr& event_at(void* pointer) { return *static_cast<EventPtr*>(pointer); }

void wait_for(Event& event, std::uint64_t version) {
  std::unique_lock lock(event.mutex);
  event.changed.wait(lock, [&] { return event.done >= version; });
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {  // from here on, the process uses it
    uncheckedSetDevice(device);
    contexts |= 1 << device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
    return make(index, current_streams.at(static_cast<std::size_t>(index)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return make(device.index(), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<c10::StreamId> next{0};
    return make(device.has_index() ? device.index() : current_device, 1 + next++ % kPoolStreams);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& current = current_streams.at(static_cast<std::size_t>(stream.device_index()));
    const c10::StreamId before = std::exchange(current, stream.id());
    return make(stream.device_index(), before);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  void record(void** pointer, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    const OnDevice there(stream.device());
    if (*pointer == nullptr) *pointer = new EventPtr(std::make_shared<Event>());
    const EventPtr event = event_at(*pointer);
    std::uint64_t version = 0;
    {
      const std::lock_guard lock(event->mutex);
      version = ++event->recorded;
    }
    queue_of(stream).add([event, version] {
      const std::lock_guard lock(event->mutex);
      event->done = version;
      event->changed.notify_all();
    });
  }
  void block(void* pointer, const c10::Stream& stream) const override {
    if (pointer == nullptr) return;
    const OnDevice there(stream.device());
    const EventPtr event = event_at(pointer);
    std::uint64_t version = 0;
    {
      const std::lock_guard lock(event->mutex);
      version = event->recorded;
    }
    queue_of(stream).add([event, version] { wait_for(*event, version); });
  }
  bool queryEvent(void* pointer) const override {
    if (pointer == nullptr) return true;
    if (capturing && capture_mode != kRelaxedCaptures) {
      ++captures_spoiled;
      TORCH_CHECK(false, "operation not permitted when stream is capturing");
    }
    if (queries_to_fail > 0) {
      --queries_to_fail;
      TORCH_CHECK(false, "the query has failed");
    }
    Event& event = *event_at(pointer);
    const std::lock_guard lock(event.mutex);
    return event.done == event.recorded;
  }
  void destroyEvent(void* pointer, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventPtr*>(pointer);
  }
  void synchronizeEvent(void* pointer) const override {
    ++syncs;
    if (pointer != nullptr) wait_for(*event_at(pointer), event_at(pointer)->recorded);
  }
  bool queryStream(const c10::Stream& stream) const override { return queue_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { queue_of(stream).wait_idle(); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { wait_all_idle(device); }
  virtual bool isStreamCapturing(const c10::Stream& stream) const {  // overrides from torch 2.12 on
    return capturing && stream.id() == 0 && stream.device_index() == 0;
  }

 private:
  /// Sets a device and the former one again, as CUDA's guard does: that begins to use both.
  struct OnDevice {
    explicit OnDevice(c10::Device device) : before(kType, current_device) {
      Guard().setDevice(device);
    }
    ~OnDevice() { Guard().setDevice(before); }
    const c10::Device before;
  };
  static c10::Stream make(c10::DeviceIndex device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
  }
};

// ------------------------------------------------------------------------------- memory

struct Block {
  std::unique_ptr<std::byte[]> memory;
  std::size_t bytes = 0;
  Queue* queue = nullptr;  // current when it was allocated
};

/// What is freed may be used again by what its stream does next: for the test, it is overwritten.
void free_device(void* context) {
  auto* block = static_cast<Block*>(context);
  block->queue->add([block] {
    std::memset(block->memory.get(), 0xDD, block->bytes);
    device_bytes -= static_cast<std::int64_t>(block->bytes);
    delete block;
  });
}

void free_pinned(void* context) {
  auto* block = static_cast<Block*>(context);
  pinned_bytes -= static_cast<std::int64_t>(block->bytes);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, current_device);
    if (bytes == 0) return {nullptr, device};
    auto* block =
        new Block{std::make_unique<std::byte[]>(bytes), bytes, &current_queue(current_device)};
    device_bytes += static_cast<std::int64_t>(bytes);
    return {block->memory.get(), block, &free_device, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* block = new Block{std::make_unique<std::byte[]>(bytes + 1), bytes, nullptr};
    const std::int64_t now = pinned_bytes += static_cast<std::int64_t>(bytes);
    std::int64_t peak = pinned_peak;
    while (peak < now && !pinned_peak.compare_exchange_weak(peak, now)) {
    }
    return {block->memory.get(), block, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* allocator = new PinnedAllocator;
    return allocator;
  }
  bool isPinnedPtr(const void*) const override { return false; }
};

bool pinned(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.storage().data_ptr().get_deleter() == &free_pinned;
}

// ------------------------------------------------------------------------------- operators

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
  return at::detail::empty_generic_symint(sizes, c10::GetAllocator(kType),
                                          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                          c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kType),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

/// The same memory as a tensor of the CPU.
at::Tensor host_view(const at::Tensor& tensor) {
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

void pause_until(const std::function<bool()>& over) {
  for (int ms = 0; ms < 60000 && !over(); ++ms) pause_us(1000);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::Tensor& on_device = from.is_cpu() ? to : from;
  Queue& queue = current_queue(on_device.device().index());
  TORCH_CHECK(!copies_fail, "the device has fallen off the bus");
  if (copies_hang) pause_until([] { return !copies_hang; });
  const bool kernel = !from.is_cpu() && !to.is_cpu();
  if (kernel && kernels_load) pause_until([] { return blocks_open == 0; });
  // As with a GPU: pinned memory is kept until the copy is done, memory of the device is not.
  std::vector<c10::Storage> kept;
  for (const at::Tensor& tensor : {from, to}) {
    if (pinned(tensor)) kept.push_back(tensor.storage());
  }
  const bool wait =
      !non_blocking || (from.is_cpu() && !pinned(from)) || (to.is_cpu() && !pinned(to));
  const at::AutoDispatchBelowADInplaceOrView plain;
  queue.add([source = host_view(from), target = host_view(to), kept = std::move(kept),
             us = copy_delay_us.load()] {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below;
    pause_us(us);
    target.copy_(source);
  });
  if (wait) queue.wait_idle();
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(to.sizes() == from.sizes(), "tensors of this device keep their sizes");
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes,
                      c10::SymIntArrayRef strides, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset ? std::make_optional(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

/// As CUDA's: a number that is on the CPU becomes an argument of the kernel.
at::Tensor mul(const at::Tensor& self, const at::Tensor& other) {
  if (other.dim() != 0 || !other.is_cpu()) return self.cpu().mul(other.cpu()).to(self.device());
  const at::Tensor product =
      at::empty(self.sizes(), self.options().dtype(at::result_type(self, other)));
  current_queue(self.device().index())
      .add([source = host_view(self), target = host_view(product), factor = other.clone()] {
        const at::NoGradGuard no_grad;
        const at::AutoDispatchBelowADInplaceOrView below;
        target.copy_(source.mul(factor));
      });
  return product;
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

/// A kernel: after `us`, and when no fills are held, it fills the tensor.
void fill_later(const at::Tensor& tensor, double value, std::int64_t us) {
  current_queue(tensor.device().index()).add([target = host_view(tensor), value, us] {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below;
    pause_us(us);
    pause_until([] { return !fills_held; });
    target.fill_(value);
  });
}

[[maybe_unused]] const bool registered = [] {
  c10::register_privateuse1_backend("slow");
  c10::impl::registerDeviceGuard(kType, new Guard);
  c10::SetAllocator(kType, new DeviceAllocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

namespace c10d::cuda {

struct Hold {
  std::atomic<int> status = RUNNING;
  void end(int how) {
    int running = RUNNING;
    if (!status.compare_exchange_strong(running, how)) return;
    --blocks_open;
    status.notify_all();
  }
};
auto* const holds_mutex = new std::mutex;
auto* const holds = new std::vector<std::weak_ptr<Hold>>;

void time_out_blocks() {
  const std::lock_guard lock(*holds_mutex);
  for (const auto& weak : *holds) {
    if (const auto hold = weak.lock()) hold->end(TIMED_OUT);
  }
}

class SlowStreamBlock final : public StreamBlock {
 public:
  explicit SlowStreamBlock(std::chrono::milliseconds timeout) {
    block_timeout_ms = timeout.count();
    ++blocks_made;
    ++blocks_open;
    {
      const std::lock_guard lock(*holds_mutex);
      holds->push_back(hold_);
    }
    current_queue(current_device).add([hold = hold_] { hold->status.wait(RUNNING); });
  }
  void abort() override { hold_->end(ABORTED); }
  StreamBlockStatus status() override {
    return static_cast<StreamBlockStatus>(hold_->status.load());
  }

 private:
  std::shared_ptr<Hold> hold_ = std::make_shared<Hold>();
};

C10_REGISTER_CLASS(StreamBlockRegistry, SLOW, SlowStreamBlock)

}  // namespace c10d::cuda

// What a runtime offers beyond c10's interface, under CUDA's names with the device's in front.
extern "C" int slowStreamCreateWithPriority(void** stream, unsigned, int) {
  static std::atomic<std::intptr_t> next{0x1000};  // even: that is how torch knows them
  *stream = reinterpret_cast<void*>(next += 16);
  return 0;
}

extern "C" int slowThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return 0;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("mul.Tensor", &mul);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY(slowdev, m) {
  m.def("fill_later(Tensor(a!) self, float value, int us) -> ()", &fill_later);
  m.def("set_copy_delay_us(int us) -> ()", [](std::int64_t us) { copy_delay_us = us; });
  m.def("fail_copies(bool fail) -> ()", [](bool fail) { copies_fail = fail; });
  m.def("hang_copies(bool hang) -> ()", [](bool hang) { copies_hang = hang; });
  m.def("hold_fills(bool hold) -> ()", [](bool hold) { fills_held = hold; });
  m.def("load_kernels(bool load) -> ()", [](bool load) { kernels_load = load; });
  m.def("capture(bool begin) -> ()", [](bool begin) { capturing = begin; });
  m.def("fail_queries(int count) -> ()", [](std::int64_t count) { queries_to_fail = count; });
  m.def("time_out_blocks() -> ()", &c10d::cuda::time_out_blocks);
  m.def("block_timeout_ms() -> int", [] { return block_timeout_ms.load(); });
  m.def("contexts() -> int", [] { return contexts.load(); });
  m.def("captures_spoiled() -> int", [] { return captures_spoiled.load(); });
  m.def("syncs() -> int", [] { return syncs.load(); });
  m.def("device_bytes() -> int", [] { return device_bytes.load(); });
  m.def("pinned_bytes() -> int", [] { return pinned_bytes.load(); });
  m.def("pinned_peak() -> int", [] { return pinned_peak.load(); });
  m.def("blocks_made() -> int", [] { return blocks_made.load(); });
  m.def("blocks_open() -> int", [] { return blocks_open.load(); });
}
