// An accelerator that is none: device "standin", with memory of its own kind, whose operations the CPU computes.
//
// For tests on machines without an accelerator. Much of what goes wrong on a real one goes wrong here as well: an
// operation on tensors of two devices is an error (there are two of these devices), a host's number joins only operations
// that are pointwise, `is_cpu` is false, random numbers come from generators of the device's own, pinned memory is known,
// streams and events exist. What CUDA's kernels refuse is refused: bfloat16 gradients where they are unscaled, and fused
// optimizers' tensors that differ in format or strides.
//
// A copy to pinned memory that nobody waits for arrives late, and until then NaNs lie there. All else has happened when it
// is dispatched, in order; what would be a race where it has not is told by `torch.ops.standin.races()`
// (standin_order.h), pinned memory that the host changes before a copy from it would have been made included. Every call
// through which the host of a real accelerator would wait is counted by name: `torch.ops.standin.waits()`.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "standin_order.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr DeviceType kStandIn = DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 2;

thread_local DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

struct On { // makes a device the current one for a while
  DeviceIndex before = current_device;
  explicit On(Device device) {
    if (device.has_index()) current_device = device.index();
  }
  ~On() { current_device = before; }
};

order::Order& streams = *new order::Order; // as long as the process, like all below

order::Lane lane(DeviceIndex device) { return {device, current_streams[device]}; }

// ---- waits of the host

std::mutex& lock = *new std::mutex; // as long as the process: tensors may outlive what is destroyed at its end
std::vector<std::string>& waits = *new std::vector<std::string>;
thread_local int computing = 0; // > 0 while the CPU computes for the device: its copies are not the program's

void host_waits(const char* how) {
  if (computing) return;
  std::lock_guard<std::mutex> held(lock);
  waits.emplace_back(how);
}

// ---- copies on their way to the host

constexpr int64_t kOperationsOnTheWay = 40; // dispatched meanwhile

struct Copy {
  at::Tensor pinned, values; // both the CPU's
  bool to_host;
  int64_t arrives; // at this count of operations
};

std::deque<Copy>& on_the_way = *new std::deque<Copy>;
std::atomic<int64_t> dispatched{0}, sent{0}, arrived{0};

void let_arrive(int64_t at_least) { // in order, as on one stream: so many of all that were sent, and what is due
  std::vector<Copy> now; // released without the lock, which freeing pinned memory takes
  std::lock_guard<std::mutex> held(lock);
  while (!on_the_way.empty() && (arrived < at_least || on_the_way.front().arrives <= dispatched)) {
    const Copy& copy = now.emplace_back(on_the_way.front());
    if (copy.to_host)
      std::memcpy(copy.pinned.data_ptr(), copy.values.data_ptr(), copy.values.nbytes());
    else if (std::memcmp(copy.pinned.data_ptr(), copy.values.data_ptr(), copy.values.nbytes()))
      streams.report("the host changed pinned memory before a copy from it to the device had been made");
    on_the_way.pop_front();
    ++arrived;
  }
}

bool is_awaited(const at::Tensor& pinned) { // by a copy to the host
  std::lock_guard<std::mutex> held(lock);
  const auto* begin = static_cast<const char*>(pinned.data_ptr());
  return std::any_of(on_the_way.begin(), on_the_way.end(), [&](const Copy& copy) {
    const auto* other = static_cast<const char*>(copy.pinned.data_ptr());
    return copy.to_host && other < begin + pinned.nbytes() && begin < other + copy.pinned.nbytes();
  });
}

void send(const at::Tensor& pinned, const at::Tensor& source, bool to_host) { // equal dtype and strides, no gaps
  at::Tensor values = at::empty_like(pinned, at::TensorOptions().pinned_memory(false));
  values.copy_(source);
  if (to_host) std::memset(pinned.data_ptr(), 0xFF, pinned.nbytes());
  std::lock_guard<std::mutex> held(lock);
  on_the_way.push_back({pinned, values, to_host, dispatched + kOperationsOnTheWay});
  ++sent;
}

// ---- memory

std::map<std::uintptr_t, size_t>& pinned = *new std::map<std::uintptr_t, size_t>;
std::array<std::atomic<int64_t>, kDevices> allocated{}, peak{};

struct Block {
  void* memory;
  size_t bytes;
  DeviceIndex device;
};

void* new_memory(size_t bytes) {
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, 64, bytes ? bytes : 64) == 0, "out of memory");
  return memory;
}

void free_device(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated[block->device] -= static_cast<int64_t>(block->bytes);
  streams.end(block->memory);
  std::free(block->memory);
  delete block;
}

void free_pinned(void* memory) {
  {
    std::lock_guard<std::mutex> held(lock);
    pinned.erase(reinterpret_cast<std::uintptr_t>(memory));
  }
  std::free(memory);
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const DeviceIndex device = current_device;
    auto* block = new Block{new_memory(bytes), bytes, device};
    auto &held = allocated[device], &most = peak[device];
    held += static_cast<int64_t>(bytes);
    for (int64_t before = most; before < held && !most.compare_exchange_weak(before, held);) {}
    streams.begin(block->memory, lane(device));
    return {block->memory, block, &free_device, Device(kStandIn, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& place, Stream stream) override {
    streams.record_stream(place.get(), {stream.device_index(), stream.id()});
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override { peak[device] = allocated[device].load(); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex) override { return {size_t{1} << 30, size_t{1} << 30}; }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = allocated[device];
    bytes.peak = peak[device];
    return stats;
  }
} device_memory;

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = new_memory(bytes);
    std::lock_guard<std::mutex> held(lock);
    pinned[reinterpret_cast<std::uintptr_t>(memory)] = bytes ? bytes : 64;
    return {memory, memory, &free_pinned, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
} pinned_memory;

bool is_pinned(const void* place) {
  std::lock_guard<std::mutex> held(lock);
  const auto address = reinterpret_cast<std::uintptr_t>(place);
  auto next = pinned.upper_bound(address);
  if (next == pinned.begin()) return false;
  --next;
  return address < next->first + next->second;
}

REGISTER_ALLOCATOR(kStandIn, &device_memory);

// ---- streams and events

std::atomic<c10::StreamId> last_stream{0};

using Clock = std::chrono::steady_clock;

void wait(const char* how, int64_t copies) {
  host_waits(how);
  if (!computing) let_arrive(copies);
}

void wait(const char* how, order::Lane stream) {
  wait(how, sent);
  if (!computing) streams.tell_host(streams.heard_by(stream));
}

void wait(const char* how) { wait(how, lane(current_device)); }

struct Mark {
  Clock::time_point time;
  int64_t copies; // sent before it
  order::Times heard; // by its stream
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kStandIn; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(kStandIn, current_device); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "invalid device ordinal");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }

  Stream getStream(Device device) const override { return Stream(Stream::UNSAFE, here(device), id(device)); }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::UNSAFE, here(device), 0); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream getNewStream(Device device, int) const override { return Stream(Stream::UNSAFE, here(device), ++last_stream); }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream& stream) const override { wait("stream.synchronize", of(stream)); }
  void synchronizeDevice(const DeviceIndex) const override {
    wait("device.synchronize", sent);
    if (!computing) streams.tell_host_all();
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Mark;
    *static_cast<Mark*>(*event) = {Clock::now(), sent, streams.heard_by(of(stream))};
  }
  void block(void* event, const Stream& stream) const override {
    if (event != nullptr) streams.tell(of(stream), static_cast<Mark*>(event)->heard);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || arrived >= static_cast<Mark*>(event)->copies;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    wait("event.synchronize", static_cast<Mark*>(event)->copies);
    streams.tell_host(static_cast<Mark*>(event)->heard);
  }
  double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
    const auto passed = static_cast<Mark*>(end)->time - static_cast<Mark*>(begin)->time;
    return std::chrono::duration<double, std::milli>(passed).count();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& place, const Stream& stream) const override {
    streams.record_stream(place.get(), of(stream));
  }

 private:
  static Device here(Device device) { return device.has_index() ? device : Device(kStandIn, current_device); }
  static c10::StreamId id(Device device) { return current_streams[here(device).index()]; }
  static order::Lane of(const Stream& stream) { return {stream.device_index(), stream.id()}; }
};

// ---- random numbers

struct DeviceGenerator final : c10::GeneratorImpl { // a device's own numbers, though drawn as a CPU's are
  explicit DeviceGenerator(DeviceIndex index)
      : GeneratorImpl(Device(kStandIn, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override { numbers->set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return numbers->current_seed(); }
  uint64_t seed() override { return numbers->seed(); }
  void set_state(const c10::TensorImpl& state) override { numbers->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return numbers->get_state(); }
  c10::intrusive_ptr<at::CPUGeneratorImpl> numbers = c10::make_intrusive<at::CPUGeneratorImpl>();

 private:
  DeviceGenerator* clone_impl() const override {
    auto* twin = new DeviceGenerator(device().index());
    twin->numbers->set_state(*numbers->get_state());
    return twin;
  }
};

const at::Generator& default_generator(DeviceIndex index) {
  static auto& all = *new std::array<at::Generator, kDevices>{
      at::make_generator<DeviceGenerator>(DeviceIndex{0}), at::make_generator<DeviceGenerator>(DeviceIndex{1})};
  return all[index < 0 ? current_device : index];
}

struct Lent { // the state of a device's generator to the CPU's default one, which computes for it
  at::Generator own, host = at::detail::getDefaultCPUGenerator();
  at::Tensor before;
  explicit Lent(at::Generator generator) : own(std::move(generator)), before(host.get_state()) {
    host.set_state(own.get_state());
  }
  ~Lent() {
    own.set_state(host.get_state());
    host.set_state(before);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex device) const override { current_device = device; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current_device : std::exchange(current_device, device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<DeviceGenerator>(device < 0 ? current_device : device);
  }
  bool isPinnedPtr(const void* place) const override { return is_pinned(place); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  Device getDeviceFromPtr(void*) const override { return Device(kStandIn, current_device); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const On device(storage.device());
    c10::DataPtr larger = device_memory.allocate(bytes);
    std::memcpy(larger.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(larger));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
} hooks;

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

// ---- operations

at::Tensor on_host(const at::Tensor& tensor) { // the same memory, seen as the CPU's
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).requires_grad(false));
}

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const On chosen(device.value_or(Device(kStandIn)));
  return at::detail::empty_generic(
      size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool>) {
  const On chosen(device.value_or(Device(kStandIn)));
  return at::detail::empty_strided_generic(
      size, stride, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

void use(const at::Tensor& tensor, bool writes, const std::string& by) {
  if (computing || !tensor.defined() || tensor.device().type() != kStandIn || !tensor.has_storage()) return;
  streams.use(tensor.storage().data(), lane(tensor.device().index()), writes, by);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const bool from_device = source.device().type() == kStandIn, to_device = target.device().type() == kStandIn;
  use(source, false, "copy");
  use(target, true, "copy");
  if (from_device != to_device) {
    const at::Tensor& hosts = from_device ? target : source;
    // A copy that does not wait needs pinned memory of one piece and one format at both ends.
    if (!non_blocking || !is_pinned(hosts.data_ptr()) || source.scalar_type() != target.scalar_type()) {
      wait(from_device ? "copy to the host" : "copy from the host");
    } else if (from_device && !computing && target.is_non_overlapping_and_dense()) {
      send(target, on_host(source), true);
      return target;
    } else if (to_device && !computing && source.is_non_overlapping_and_dense()) {
      if (is_awaited(source)) let_arrive(sent); // as the device sees it
      send(source, source, false);
    }
  }
  on_host(target).copy_(on_host(source));
  return target;
}

const at::Tensor& resize_(const at::Tensor& tensor, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const On device(tensor.device());
  return at::native::resize_(tensor, size, format);
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  resize_(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}

c10::Scalar local_scalar(const at::Tensor& tensor) {
  use(tensor, false, "item");
  wait("item");
  return on_host(tensor).item();
}

at::Tensor& set_storage(
    at::Tensor& tensor, c10::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return tensor;
}

at::Tensor& set_whole_storage(at::Tensor& tensor, c10::Storage storage) {
  const auto length = static_cast<int64_t>(storage.nbytes() / tensor.dtype().itemsize());
  return set_storage(tensor, std::move(storage), 0, {length}, {1});
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& source) {
  return set_storage(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void record_stream(at::Tensor& tensor, Stream stream) { device_memory.recordStream(tensor.storage().data_ptr(), stream); }

bool is_one_of(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Operations that are not pointwise, and yet take a number of the host's, or indices.
const std::vector<std::string> taking_numbers{"aten::fill_", "aten::masked_fill", "aten::masked_fill_"};
const std::vector<std::string> taking_indices{"aten::index", "aten::index_put_", "aten::_index_put_impl_",
                                              "aten::index_put"};

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<at::Tensor> found;
  if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor.has_value()) found.push_back(*tensor);
  return found;
}

void require_one_device(const std::string& name, const std::vector<at::Tensor>& tensors) {
  const at::Tensor* first = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (first == nullptr && tensor.device().type() == kStandIn) first = &tensor;
    TORCH_CHECK(tensor.device().type() == kStandIn && tensor.device() == first->device(), name,
                ": tensors on several devices, one on ", tensor.device());
  }
}

void require_one_device(const c10::OperatorHandle& op, const std::vector<c10::IValue>& values) {
  const std::string& name = op.schema().name();
  const bool takes_numbers = op.hasTag(at::Tag::pointwise) || is_one_of(taking_numbers, name);
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) {
    if (value.isOptionalTensorList() && is_one_of(taking_indices, name)) continue;
    for (const at::Tensor& tensor : tensors_in(value)) {
      const bool is_number = value.isTensor() && tensor.defined() && tensor.is_cpu() && tensor.dim() == 0;
      if (!is_number || !(takes_numbers || is_one_of(taking_indices, name))) tensors.push_back(tensor);
    }
  }
  // The device's come first, so that what is told is who else is there.
  std::stable_sort(tensors.begin(), tensors.end(), [](const at::Tensor& one, const at::Tensor& other) {
    auto key = [](const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kStandIn ? 0 : 1; };
    return key(one) < key(other);
  });
  require_one_device(name, tensors);
}

// What CUDA's kernels of this name demand of lists: one format, and strides that agree (check_fast_path_restrictions).
void require_one_layout(const std::string& name, const std::vector<c10::IValue>& values) {
  const std::vector<at::Tensor> first = values[0].toTensorVector();
  for (const c10::IValue& value : values) {
    if (!value.isTensorList()) continue;
    const std::vector<at::Tensor> list = value.toTensorVector();
    for (size_t at = 0; at < list.size(); ++at) {
      if (list[at].dim() == 0 && first[at].dim() != 0) break; // counts of steps
      bool agrees = list[at].scalar_type() == first[0].scalar_type() && list[at].sizes() == first[at].sizes();
      for (int64_t dim = 0; agrees && dim < list[at].dim(); ++dim)
        agrees = list[at].size(dim) == 1 || list[at].stride(dim) == first[at].stride(dim);
      TORCH_CHECK(agrees, name, ": params, grads and state must have same dtype, device, and layout");
    }
  }
}

void require_known_format(const std::string& name, const std::vector<c10::IValue>& values) {
  for (const at::Tensor& tensor : values[0].toTensorVector())
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.scalar_type() != at::kBFloat16, "\"", name, "\" not implemented for 'BFloat16'");
}

// Operations through which the host of an accelerator learns something: it waits.
const std::vector<std::string> telling{"aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
                                       "aten::unique_dim", "aten::unique_consecutive", "aten::is_nonzero",
                                       "aten::bincount", "aten::repeat_interleave"};

at::Generator generator_of(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t below) {
  DeviceIndex device = current_device;
  for (size_t at = below; at < stack->size(); ++at)
    for (const at::Tensor& tensor : tensors_in((*stack)[at]))
      if (tensor.defined() && tensor.device().type() == kStandIn) device = tensor.device().index();
  for (size_t at = below; at < stack->size(); ++at) {
    c10::IValue& value = (*stack)[at];
    if (!value.isGenerator()) continue;
    const at::Generator given = value.toGenerator();
    TORCH_CHECK(given.device() == Device(kStandIn, device), "Expected a '", Device(kStandIn, device),
                "' device type for generator but found '", given.device(), "'");
    value = c10::IValue(); // the CPU's default one, to which this one's state is lent
    return given;
  }
  return default_generator(device);
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const auto& arguments = op.schema().arguments();
  const std::vector<c10::IValue> values(stack->end() - static_cast<std::ptrdiff_t>(arguments.size()), stack->end());
  require_one_device(op, values);
  if (name.rfind("aten::_fused_", 0) == 0 && values[0].isTensorList()) require_one_layout(name, values);
  if (name == "aten::_amp_foreach_non_finite_check_and_unscale_") require_known_format(name, values);
  for (size_t at = 0; at < values.size(); ++at)
    for (const at::Tensor& tensor : tensors_in(values[at]))
      use(tensor, arguments[at].alias_info() != nullptr && arguments[at].alias_info()->isWrite(), name);
  if (std::find(telling.begin(), telling.end(), name) != telling.end()) wait(name.c_str());
  ++dispatched;
  let_arrive(0);
  const size_t below = stack->size() - values.size();
  std::optional<Lent> lent;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) lent.emplace(generator_of(op, stack, below));
  ++computing;
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    --computing;
    throw;
  }
  --computing;
  for (size_t at = below; at < stack->size(); ++at)
    for (const at::Tensor& tensor : tensors_in((*stack)[at])) use(tensor, true, name);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& weight,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool transposed,
    c10::IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> wanted) {
  require_one_device("convolution_backward", {gradient, input, weight});
  for (const at::Tensor& tensor : {gradient, input, weight}) use(tensor, false, "convolution_backward");
  auto [by_input, by_weight, by_bias] = at::convolution_backward(
      on_host(gradient), on_host(input), on_host(weight), at::IntArrayRef{weight.size(0)}, stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  ++computing;
  auto to_device = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(input.device()) : tensor; };
  auto result = std::make_tuple(to_device(by_input), to_device(by_weight), to_device(by_bias));
  --computing;
  return result;
}

at::Tensor convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool transposed,
    c10::IntArrayRef output_padding,
    int64_t groups) {
  require_one_device("convolution", {input, weight, bias.value_or(at::Tensor())});
  for (const at::Tensor& tensor : {input, weight, bias.value_or(at::Tensor())}) use(tensor, false, "convolution");
  std::optional<at::Tensor> added;
  if (bias.has_value() && bias->defined()) added = on_host(*bias);
  const at::Tensor result = at::convolution(
      on_host(input), on_host(weight), added, stride, padding, dilation, transposed, output_padding, groups);
  ++computing;
  at::Tensor moved = result.to(input.device());
  --computing;
  return moved;
}

at::Tensor coalesced(const at::Tensor& sparse) {
  wait("coalesce"); // the host needs the number of rows
  const at::Tensor host = at::_sparse_coo_tensor_unsafe(
      on_host(sparse._indices()), on_host(sparse._values()), sparse.sizes(), at::TensorOptions().device(at::kCPU));
  const at::Tensor merged = at::_coalesce(host);
  ++computing;
  at::Tensor moved = at::_sparse_coo_tensor_unsafe(
      merged._indices().to(sparse.device()), merged._values().to(sparse.device()), sparse.sizes(),
      at::TensorOptions().device(sparse.device()));
  --computing;
  return moved._coalesced_(true);
}

at::Tensor dense(const at::Tensor& sparse, std::optional<at::ScalarType>, std::optional<bool>) {
  at::Tensor whole = at::zeros(sparse.sizes(), sparse._values().options());
  on_host(whole).index_add_(0, on_host(sparse._indices()).select(0, 0), on_host(sparse._values())); // rows, as here
  return whole;
}

at::Tensor& add_sparse(at::Tensor& sum, const at::Tensor& other, const at::Scalar& alpha) {
  const auto one = sum, more = at::_sparse_coo_tensor_unsafe(
      other._indices(), other._values() * alpha, other.sizes(), at::TensorOptions().device(sum.device()));
  auto joined = at::_sparse_coo_tensor_unsafe(
      at::cat({one._indices(), more._indices()}, 1), at::cat({one._values(), more._values()}), one.sizes(),
      at::TensorOptions().device(sum.device()));
  return sum.copy_(joined);
}

int64_t attention_by_formula(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
    std::optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("record_stream", &record_stream);
  for (const char* kernel : {"_fused_sgd_", "_fused_adam_", "_fused_adamw_"}) // it has them, as others do
    m.impl(kernel, torch::CppFunction::makeFromBoxedFunction<&compute>());
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", &at::native::new_with_dims_and_tensor_sparse_symint);
  m.impl("_sparse_coo_tensor_with_dims", &at::native::new_with_dims_sparse);
  m.impl("empty.memory_format", &at::native::empty_sparse_symint);
  m.impl("_to_dense", &dense);
  m.impl("add_.Tensor", &add_sparse);
  m.impl("clone", &at::native::clone_sparse);
  m.impl("copy_", &at::native::copy_sparse_wrapper_);
  m.impl("_indices", &at::native::_indices_sparse);
  m.impl("_values", &at::native::_values_sparse);
  m.impl("indices", &at::native::indices_sparse);
  m.impl("values", &at::native::values_sparse);
  m.impl("_nnz", &at::native::_nnz_sparse);
  m.impl("sparse_dim", &at::native::sparse_dim_sparse);
  m.impl("dense_dim", &at::native::dense_dim_sparse);
  m.impl("is_coalesced", &at::native::is_coalesced_sparse);
  m.impl("_coalesced_", &at::native::_coalesced_sparse_);
  m.impl("_coalesce", &coalesced);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
#define WIDER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(WIDER)
}

TORCH_LIBRARY(standin, m) {
  m.def("races() -> str[]", [] { return streams.take_races(); });
  m.def("current_device() -> int", [] { return static_cast<int64_t>(current_device); });
  m.def("set_device(int index) -> ()", [](int64_t index) { current_device = static_cast<DeviceIndex>(index); });
  m.def("seed(int seed) -> ()", [](int64_t seed) {
    for (DeviceIndex device = 0; device < kDevices; ++device)
      at::Generator(default_generator(device)).set_current_seed(~static_cast<uint64_t>(seed)); // other numbers than a CPU draws
  });
  m.def("rng_state(int index) -> Tensor", [](int64_t index) {
    return default_generator(static_cast<DeviceIndex>(index)).get_state();
  });
  m.def("set_rng_state(int index, Tensor state) -> ()", [](int64_t index, const at::Tensor& state) {
    at::Generator(default_generator(static_cast<DeviceIndex>(index))).set_state(state);
  });
  m.def("waits() -> str[]", [] {
    std::lock_guard<std::mutex> held(lock);
    return waits;
  });
  m.def("forget_waits() -> ()", [] {
    std::lock_guard<std::mutex> held(lock);
    waits.clear();
  });
}

} // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &attention_by_formula)
}
