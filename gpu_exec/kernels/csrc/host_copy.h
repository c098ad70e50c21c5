// Copies submitted by the host: one driver call per unit, or batches of units.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <vector>

namespace oasis {

constexpr auto kCounterTimeout = std::chrono::seconds(20);
constexpr long long kCopyPart = 256;

struct CopyArgs {
  char* pool;               // device pool, layer 0
  const char* host;         // pinned pool
  const long long* offset;  // [layers + 1] first move of each layer
  const long long* target;  // unit in the layer's pool of each move
  const long long* source;  // host unit of each move
  const int* released;      // layers released so far, in host memory (null: all)
  cudaEvent_t* events;      // [layers][2] to record around each layer (null: none)
  long long layer_bytes, unit_bytes;
  int layer_begin, layer_end, batched;
  int in_flight;            // parts that the stream may hold at a time; 0: any number
};

// Bound the parts that a stream holds: copies submitted to a queue that is nearly full cost up to
// eight times as much.
class CopyWindow {
 public:
  CopyWindow(cudaStream_t stream, int parts) : stream_(stream), events_(parts) {}
  ~CopyWindow() {
    for (cudaEvent_t event : events_)
      if (event) cudaEventDestroy(event);
  }
  CopyWindow(const CopyWindow&) = delete;
  CopyWindow& operator=(const CopyWindow&) = delete;

  // Wait until there is room for another part.
  int enter() {
    if (events_.empty()) return 0;
    cudaEvent_t& event = events_[next_];
    if (event) return static_cast<int>(cudaEventSynchronize(event));
    return static_cast<int>(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  // Note that the part has been submitted.
  int leave() {
    if (events_.empty()) return 0;
    cudaError_t error = cudaEventRecord(events_[next_], stream_);
    next_ = (next_ + 1) % events_.size();
    return static_cast<int>(error);
  }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  size_t next_ = 0;
};

// Submit the moves [begin, end) of one layer.
inline int copy_part(const CopyArgs& a, int layer, long long begin, long long end,
                     cudaStream_t stream) {
  char* pool = a.pool + layer * a.layer_bytes;
  if (!a.batched) {
    for (long long i = begin; i < end; ++i) {
      cudaError_t error =
          cudaMemcpyAsync(pool + a.target[i] * a.unit_bytes, a.host + a.source[i] * a.unit_bytes,
                          a.unit_bytes, cudaMemcpyHostToDevice, stream);
      if (error != cudaSuccess) return static_cast<int>(error);
    }
    return 0;
  }
  std::vector<void*> to;
  std::vector<const void*> from;
  for (long long i = begin; i < end; ++i) {
    to.push_back(pool + a.target[i] * a.unit_bytes);
    from.push_back(a.host + a.source[i] * a.unit_bytes);
  }
  std::vector<size_t> sizes(to.size(), static_cast<size_t>(a.unit_bytes));
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t index = 0;
  return static_cast<int>(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), to.size(),
                                               &attributes, &index, 1, stream));
}

}  // namespace oasis
