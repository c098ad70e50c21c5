// Copies submitted by the host: one driver call per unit, or pieces that host threads packed.
#pragma once
#include <cuda_runtime.h>

#include "host_pack.h"

namespace oasis {

constexpr long long kCopyPart = 256;

struct CopyArgs {
  char* pool;               // device pool, layer 0
  const char* host;         // pinned pool
  const long long* offset;  // [layers + 1] first move of each layer
  const long long* target;  // unit in the layer's pool of each move
  const long long* source;  // host unit of each move
  const int* released;      // layers released so far, in host memory (null: all)
  cudaEvent_t* events;      // [layers][2] to record around each layer (null: none)
  char* landing;            // device: where packed units arrive, in the order of the step's list
  long long layer_bytes, unit_bytes;
  int layer_begin, layer_end;
  int in_flight;            // parts of single copies that the stream holds at a time; 0: any number
};

// Say whether the device has released a layer.
inline bool is_released(const CopyArgs& a, int layer) {
  if (a.released && *static_cast<const volatile int*>(a.released) <= layer) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

inline int mark(const CopyArgs& a, int layer, bool ended, cudaStream_t stream) {
  if (!a.events) return 0;
  return static_cast<int>(cudaEventRecord(a.events[2 * layer + ended], stream));
}

// Events that are recorded in turn and only waited for or asked.
class EventRing {
 public:
  explicit EventRing(int size) : events_(size) {}
  ~EventRing() {
    for (cudaEvent_t event : events_)
      if (event) cudaEventDestroy(event);
  }
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  int record(int at, cudaStream_t stream) {
    cudaEvent_t& event = events_[at];
    if (!event)
      if (cudaError_t e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming)) return e;
    return static_cast<int>(cudaEventRecord(event, stream));
  }
  int wait(int at) {
    return events_[at] ? static_cast<int>(cudaEventSynchronize(events_[at])) : 0;
  }
  int ask(int at, bool* done) {
    cudaError_t error = events_[at] ? cudaEventQuery(events_[at]) : cudaSuccess;
    *done = error == cudaSuccess;
    return error == cudaErrorNotReady ? 0 : static_cast<int>(error);
  }

 private:
  std::vector<cudaEvent_t> events_;
};

// Bound the parts that a stream holds: copies submitted to a queue that is nearly full cost up to
// eight times as much.
inline int copy_singly(const CopyArgs& a, int layer, EventRing& parts, int& part,
                       cudaStream_t stream) {
  char* pool = a.pool + layer * a.layer_bytes;
  for (long long i = a.offset[layer]; i < a.offset[layer + 1];) {
    long long end = i + kCopyPart < a.offset[layer + 1] ? i + kCopyPart : a.offset[layer + 1];
    if (a.in_flight)
      if (int e = parts.wait(part)) return e;
    for (; i < end; ++i)
      if (cudaError_t e =
              cudaMemcpyAsync(pool + a.target[i] * a.unit_bytes, a.host + a.source[i] * a.unit_bytes,
                              a.unit_bytes, cudaMemcpyHostToDevice, stream))
        return static_cast<int>(e);
    if (a.in_flight) {
      if (int e = parts.record(part, stream)) return e;
      part = (part + 1) % a.in_flight;
    }
  }
  return 0;
}

// What a packer needs of the device: releases of layers, slots of the ring, copies of pieces.
class PackedCopies {
 public:
  PackedCopies(const CopyArgs& a, EventRing& slots, cudaStream_t stream)
      : a_(a), slots_(slots), stream_(stream) {}

  bool released(int layer) const { return is_released(a_, layer); }
  int layer(int layer, bool ended) const { return mark(a_, layer, ended, stream_); }
  int free(int slot, bool* is_free) { return slots_.ask(slot, is_free); }
  int send(const Parcel& piece, const char* packed, int slot) {
    char* to = a_.landing + (piece.first - a_.offset[0]) * a_.unit_bytes;
    if (cudaError_t e = cudaMemcpyAsync(to, packed, piece.count * a_.unit_bytes,
                                        cudaMemcpyHostToDevice, stream_))
      return static_cast<int>(e);
    return slots_.record(slot, stream_);
  }

 private:
  const CopyArgs& a_;
  EventRing& slots_;
  cudaStream_t stream_;
};

// A packer and the events of its ring.
struct PackedTransport {
  PackedTransport(int threads, char* ring, long long piece_bytes, int slots)
      : events(slots), packer(threads, ring, piece_bytes, slots) {}
  EventRing events;
  Packer packer;
};

}  // namespace oasis
