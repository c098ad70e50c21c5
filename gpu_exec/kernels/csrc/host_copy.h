// Copies submitted by the host: one driver call per unit, or batches of units by several threads.
#pragma once
#include <cuda_runtime.h>

#include <memory>

#include "host_team.h"

namespace oasis {

constexpr long long kSinglePart = 256, kBatchPart = 64;

struct CopyArgs {
  char* pool;               // device pool, layer 0
  const char* host;         // pinned pool
  const long long* offset;  // [layers + 1] first move of each layer
  const long long* target;  // unit in the layer's pool of each move
  const long long* source;  // host unit of each move
  const int* released;      // layers released so far, in host memory (null: all)
  cudaEvent_t* events;      // [layers][2] to record around each layer (null: none)
  long long layer_bytes, unit_bytes;
  int layer_begin, layer_end;
};

inline char* device_address(const CopyArgs& a, int layer, long long move) {
  return a.pool + layer * a.layer_bytes + a.target[move] * a.unit_bytes;
}

inline const char* host_address(const CopyArgs& a, long long move) {
  return a.host + a.source[move] * a.unit_bytes;
}

// Bound the parts that a stream holds: copies submitted to a queue that is nearly full cost up to
// eight times as much.
class CopyWindow {
 public:
  explicit CopyWindow(int parts) : events_(parts) {}
  ~CopyWindow() {
    for (cudaEvent_t event : events_)
      if (event) cudaEventDestroy(event);
  }
  CopyWindow(const CopyWindow&) = delete;
  CopyWindow& operator=(const CopyWindow&) = delete;

  // Wait until there is room for another part.
  int enter() {
    cudaEvent_t& event = events_[next_];
    if (event) return static_cast<int>(cudaEventSynchronize(event));
    return static_cast<int>(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  // Note that the part has been submitted.
  int leave(cudaStream_t stream) {
    cudaError_t error = cudaEventRecord(events_[next_], stream);
    next_ = (next_ + 1) % events_.size();
    return static_cast<int>(error);
  }

 private:
  std::vector<cudaEvent_t> events_;
  size_t next_ = 0;
};

inline int copy_singly(const CopyArgs& a, const Part& part, cudaStream_t stream) {
  for (long long i = part.first; i < part.end; ++i)
    if (cudaError_t e = cudaMemcpyAsync(device_address(a, part.layer, i), host_address(a, i),
                                        a.unit_bytes, cudaMemcpyHostToDevice, stream))
      return static_cast<int>(e);
  return 0;
}

inline int copy_batch(const CopyArgs& a, const Part& part, cudaStream_t stream) {
  void* to[kBatchPart];
  const void* from[kBatchPart];
  size_t sizes[kBatchPart], count = part.end - part.first, index = 0;
  for (size_t i = 0; i < count; ++i) {
    to[i] = device_address(a, part.layer, part.first + i);
    from[i] = host_address(a, part.first + i);
    sizes[i] = a.unit_bytes;
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  return static_cast<int>(
      cudaMemcpyBatchAsync(to, from, sizes, count, &attributes, &index, 1, stream));
}

// Threads that submit copies, each to a stream of its own: one thread's driver calls take longer
// than the copies, and two streams of one thread far longer.
class CopyTeam {
 public:
  CopyTeam(int members, int parts_ahead)
      : lanes_(members), team_(members, [device = current_device()](int) { cudaSetDevice(device); }) {
    for (Lane& lane : lanes_) {
      lane.window = std::make_unique<CopyWindow>(parts_ahead);
      cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, -3);
      cudaEventCreateWithFlags(&lane.done, cudaEventDisableTiming);
    }
    cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming);
  }
  ~CopyTeam() {
    for (Lane& lane : lanes_) {
      cudaEventDestroy(lane.done);
      cudaStreamDestroy(lane.stream);
    }
    cudaEventDestroy(ready_);
  }
  CopyTeam(const CopyTeam&) = delete;
  CopyTeam& operator=(const CopyTeam&) = delete;

  // Copy the layers, each as soon as it is released; `stream` continues once they have arrived.
  // Where nothing is released layer by layer, the copies wait for what `stream` holds.
  int copy(const CopyArgs& a, bool batched, cudaStream_t stream) {
    args_ = &a, batched_ = batched;
    if (!a.released)
      if (int e = follow(stream)) return e;
    auto parts = parts_of(a.offset, a.layer_begin, a.layer_end,
                          batched ? kBatchPart : kSinglePart);
    if (int e = team_.share(parts, *this)) return e;
    if (a.layer_end > a.layer_begin)
      if (int e = spin_until([&] { return released(a.layer_end - 1); })) return e;
    for (Lane& lane : lanes_) {
      if (cudaError_t e = cudaEventRecord(lane.done, lane.stream)) return static_cast<int>(e);
      if (cudaError_t e = cudaStreamWaitEvent(stream, lane.done, 0)) return static_cast<int>(e);
    }
    return 0;
  }

  // What the team asks for: whether the device has released a layer, and a part submitted.
  bool released(int layer) const {
    const int* count = args_->released;
    if (count && *static_cast<const volatile int*>(count) <= layer) return false;
    std::atomic_thread_fence(std::memory_order_acquire);
    return true;
  }
  int submit(int member, const Part& part) {
    Lane& lane = lanes_[member];
    if (int e = lane.window->enter()) return e;
    if (part.opens)
      if (int e = mark(part.layer, 0, lane.stream)) return e;
    int e = batched_ ? copy_batch(*args_, part, lane.stream) : copy_singly(*args_, part, lane.stream);
    if (e) return e;
    if (part.closes)
      if (int e = mark(part.layer, 1, lane.stream)) return e;
    return lane.window->leave(lane.stream);
  }

 private:
  struct Lane {
    cudaStream_t stream{};
    cudaEvent_t done{};
    std::unique_ptr<CopyWindow> window;
  };

  static int current_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device;
  }
  int follow(cudaStream_t stream) {
    if (cudaError_t e = cudaEventRecord(ready_, stream)) return static_cast<int>(e);
    for (Lane& lane : lanes_)
      if (cudaError_t e = cudaStreamWaitEvent(lane.stream, ready_, 0)) return static_cast<int>(e);
    return 0;
  }
  int mark(int layer, int ended, cudaStream_t stream) const {
    if (!args_->events) return 0;
    return static_cast<int>(cudaEventRecord(args_->events[2 * layer + ended], stream));
  }

  std::vector<Lane> lanes_;
  cudaEvent_t ready_{};
  const CopyArgs* args_ = nullptr;
  bool batched_ = true;
  Team team_;  // last: its threads use the rest
};

}  // namespace oasis
