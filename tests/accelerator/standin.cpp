// An accelerator that is none: device "standin", with memory of its own kind, whose operations the CPU computes.
//
// For tests on machines without an accelerator. Much of what goes wrong on a real one goes wrong here as well: an
// operation on tensors of two devices is an error, `is_cpu` is false, pinned memory is known, streams and events exist. A
// copy to pinned memory that nobody waits for arrives late, and until then NaNs lie there. All else has happened when it
// is dispatched, in order, so that other races cannot be seen. Every call through which the host of a real accelerator
// would wait is counted by name: `torch.ops.standin.waits()`.

#include <ATen/ATen.h>
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

#include <algorithm>
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
const Device kDevice(kStandIn, 0);

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
  at::Tensor target, values; // both the CPU's
  int64_t arrives; // at this count of operations
};

std::deque<Copy>& on_the_way = *new std::deque<Copy>;
std::atomic<int64_t> dispatched{0}, sent{0}, arrived{0};

void let_arrive(int64_t at_least) { // in order, as on one stream: so many of all that were sent, and what is due
  std::vector<Copy> now; // released without the lock, which freeing pinned memory takes
  std::lock_guard<std::mutex> held(lock);
  while (!on_the_way.empty() && (arrived < at_least || on_the_way.front().arrives <= dispatched)) {
    const Copy& copy = now.emplace_back(on_the_way.front());
    std::memcpy(copy.target.data_ptr(), copy.values.data_ptr(), copy.values.nbytes());
    on_the_way.pop_front();
    ++arrived;
  }
}

void send(const at::Tensor& target, const at::Tensor& source) { // equal dtype and strides, no gaps
  at::Tensor values = at::empty_like(target, at::TensorOptions().pinned_memory(false));
  values.copy_(source);
  std::memset(target.data_ptr(), 0xFF, target.nbytes());
  std::lock_guard<std::mutex> held(lock);
  on_the_way.push_back({target, values, dispatched + kOperationsOnTheWay});
  ++sent;
}

// ---- memory

std::map<std::uintptr_t, size_t>& pinned = *new std::map<std::uintptr_t, size_t>;
std::atomic<int64_t> allocated{0}, peak{0};

struct Block {
  void* memory;
  size_t bytes;
};

void* new_memory(size_t bytes) {
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, 64, bytes ? bytes : 64) == 0, "out of memory");
  return memory;
}

void free_device(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated -= static_cast<int64_t>(block->bytes);
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
    auto* block = new Block{new_memory(bytes), bytes};
    allocated += static_cast<int64_t>(bytes);
    for (int64_t before = peak; before < allocated && !peak.compare_exchange_weak(before, allocated);) {}
    return {block->memory, block, &free_device, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, Stream) override {}
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override { peak = allocated.load(); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex) override { return {size_t{1} << 30, size_t{1} << 30}; }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = allocated;
    bytes.peak = peak;
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

thread_local c10::StreamId current_stream = 0;
std::atomic<c10::StreamId> last_stream{0};

using Clock = std::chrono::steady_clock;

void wait(const char* how, int64_t copies) {
  host_waits(how);
  if (!computing) let_arrive(copies);
}

void wait(const char* how) { wait(how, sent); }

struct Mark {
  Clock::time_point time;
  int64_t copies; // sent before it
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kStandIn; }
  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }

  Stream getStream(Device) const override { return Stream(Stream::UNSAFE, kDevice, current_stream); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::UNSAFE, kDevice, 0); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return getNewStream(kDevice, 0); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::UNSAFE, kDevice, ++last_stream); }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(kDevice);
    current_stream = stream.id();
    return before;
  }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override { wait("stream.synchronize"); }
  void synchronizeDevice(const DeviceIndex) const override { wait("device.synchronize"); }

  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Mark;
    *static_cast<Mark*>(*event) = {Clock::now(), sent};
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void* event) const override {
    return event == nullptr || arrived >= static_cast<Mark*>(event)->copies;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait("event.synchronize", static_cast<Mark*>(event)->copies);
  }
  double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
    const auto passed = static_cast<Mark*>(end)->time - static_cast<Mark*>(begin)->time;
    return std::chrono::duration<double, std::milli>(passed).count();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* place) const override { return is_pinned(place); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  Device getDeviceFromPtr(void*) const override { return kDevice; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
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
    std::optional<Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device>,
    std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const bool from_device = source.device().type() == kStandIn, to_device = target.device().type() == kStandIn;
  if (from_device != to_device) {
    const at::Tensor& hosts = from_device ? target : source;
    // A copy that does not wait needs pinned memory of one piece and one format at both ends.
    if (!non_blocking || !is_pinned(hosts.data_ptr()) || source.scalar_type() != target.scalar_type()) {
      wait(from_device ? "copy to the host" : "copy from the host");
    } else if (from_device && !computing && target.is_non_overlapping_and_dense()) {
      send(target, on_host(source));
      return target;
    }
  }
  on_host(target).copy_(on_host(source));
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  at::native::resize_(target, source.sizes());
  return copy_from(source, target, false);
}

c10::Scalar local_scalar(const at::Tensor& tensor) {
  wait("item");
  return on_host(tensor).item();
}

const at::Tensor& resize(const at::Tensor& tensor, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(tensor, size, format);
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

void record_stream(at::Tensor&, Stream) {}

void require_here(const std::string& what, const at::Tensor& tensor) {
  if (tensor.defined() && tensor.device().type() != kStandIn)
    TORCH_CHECK(false, what, ": tensors on standin:0 and on ", tensor.device());
}

void require_one_device(const c10::OperatorHandle& op, const c10::IValue& value) {
  const std::string& name = op.schema().name();
  if (value.isTensor() && value.toTensor().dim() > 0) require_here(name, value.toTensor()); // a host's number may join
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) require_here(name, tensor);
  if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor.has_value() && name.find("index") == std::string::npos) require_here(name, *tensor);
}

// Operations through which the host of an accelerator learns something: it waits.
const std::vector<std::string> telling{"aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
                                       "aten::unique_dim", "aten::unique_consecutive", "aten::is_nonzero",
                                       "aten::bincount", "aten::repeat_interleave"};

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const size_t arguments = op.schema().arguments().size();
  for (size_t at = stack->size() - arguments; at < stack->size(); ++at) require_one_device(op, (*stack)[at]);
  if (std::find(telling.begin(), telling.end(), name) != telling.end()) wait(name.c_str());
  ++dispatched;
  let_arrive(0);
  ++computing;
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    --computing;
    throw;
  }
  --computing;
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
  require_here("convolution_backward", gradient);
  require_here("convolution_backward", input);
  require_here("convolution_backward", weight);
  auto [by_input, by_weight, by_bias] = at::convolution_backward(
      on_host(gradient), on_host(input), on_host(weight), at::IntArrayRef{weight.size(0)}, stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  ++computing;
  auto to_device = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(kDevice) : tensor; };
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
  std::optional<at::Tensor> added;
  if (bias.has_value() && bias->defined()) added = on_host(*bias);
  require_here("convolution", input);
  require_here("convolution", weight);
  if (added) require_here("convolution", *bias);
  const at::Tensor result = at::convolution(
      on_host(input), on_host(weight), added, stride, padding, dilation, transposed, output_padding, groups);
  ++computing;
  at::Tensor moved = result.to(kDevice);
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
      merged._indices().to(kDevice), merged._values().to(kDevice), sparse.sizes(), at::TensorOptions().device(kDevice));
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
      other._indices(), other._values() * alpha, other.sizes(), at::TensorOptions().device(kDevice));
  auto joined = at::_sparse_coo_tensor_unsafe(
      at::cat({one._indices(), more._indices()}, 1), at::cat({one._values(), more._values()}), one.sizes(),
      at::TensorOptions().device(kDevice));
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
  m.impl("resize_", &resize);
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
