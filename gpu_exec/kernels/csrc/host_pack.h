// Host threads pack scattered units, in the order of a list, into pieces large enough for a copy
// engine. No CUDA here: who releases layers and sends pieces is an argument.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace oasis {

constexpr auto kCounterTimeout = std::chrono::seconds(20);
constexpr int kTimedOut = 702;               // cudaErrorLaunchTimeout
constexpr long long kGroupBytes = 32 << 10;  // what a thread claims at a time

struct PackList {
  const char* host;         // units by their number
  const long long* offset;  // [layers + 1] first move of each layer
  const long long* source;  // host unit of each move
  long long unit_bytes;
  int layer_begin, layer_end;
};

struct Parcel {
  long long first, count;  // moves
  int layer;
};

inline void pause(long long turn) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
  if (turn % 1024 == 1023) std::this_thread::yield();
}

// Threads that live as long as the packer share every piece; the caller of `run` opens pieces of
// the ring as they become free, and sends each one once it is whole, in order.
class Packer {
 public:
  Packer(int threads, char* ring, long long piece_bytes, int slots)
      : ring_(ring), piece_bytes_(piece_bytes), slots_(slots), left_(slots) {
    for (int t = 0; t < threads; ++t) threads_.emplace_back([this] { live(); });
  }
  ~Packer() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
      ++run_;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  int slots() const { return slots_; }

  // Pack and send the layers of a list, each once `device.released(layer)`; returns 0 or an error.
  // `device.free(slot, &is_free)` tells whether the last piece of a slot has left it,
  // `device.send(piece, packed, slot)` takes a piece, `device.layer(layer, ended)` hears of each.
  template <class Device>
  int run(const PackList& list, Device& device) {
    begin(list);
    int error = send_all(device);
    finish();
    return error;
  }

 private:
  void begin(const PackList& list) {
    list_ = list;
    long long most = piece_bytes_ / list.unit_bytes;
    group_units_ = kGroupBytes > list.unit_bytes ? kGroupBytes / list.unit_bytes : 1;
    groups_ = (most + group_units_ - 1) / group_units_;
    pieces_.clear();
    for (int layer = list.layer_begin; layer < list.layer_end; ++layer)
      for (long long i = list.offset[layer]; i < list.offset[layer + 1]; i += most) {
        long long rest = list.offset[layer + 1] - i;
        pieces_.push_back({i, rest < most ? rest : most, layer});
      }
    cursor_ = 0;
    opened_ = 0;
    failed_ = false;
    sent_ = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = true;
      ++run_;
    }
    wake_.notify_all();
  }

  // Close the run and wait for the threads that are in it; others find it closed.
  void finish() {
    failed_ = true;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = false;
    }
    for (long long turn = 0; inside_.load(std::memory_order_acquire); ++turn) pause(turn);
  }

  template <class Device>
  int send_all(Device& device) {
    for (int layer = list_.layer_begin; layer < list_.layer_end; ++layer) {
      if (int e = until(device, [&] { return device.released(layer); })) return e;
      if (int e = device.layer(layer, false)) return e;
      for (; sent_ < count() && pieces_[sent_].layer == layer; ++sent_) {
        int slot = sent_ % slots_;
        auto whole = [&] {
          return opened_.load(std::memory_order_relaxed) > sent_ &&
                 left_[slot].load(std::memory_order_acquire) == 0;
        };
        if (int e = until(device, whole)) return e;
        if (int e = device.send(pieces_[sent_], ring_ + slot * piece_bytes_, slot)) return e;
      }
      if (int e = device.layer(layer, true)) return e;
    }
    return 0;
  }

  template <class Device, class Done>
  int until(Device& device, Done done) {
    auto end = std::chrono::steady_clock::now() + kCounterTimeout;
    for (long long turn = 1;; ++turn) {
      if (int e = open_more(device)) return e;
      if (done()) return 0;
      pause(turn);
      if (turn % 4096 == 0 && std::chrono::steady_clock::now() > end) return kTimedOut;
    }
  }

  // Open every piece whose layer is released and whose slot is free.
  template <class Device>
  int open_more(Device& device) {
    for (long long next = opened_.load(std::memory_order_relaxed);
         next < count() && next < sent_ + slots_ && device.released(pieces_[next].layer); ++next) {
      int slot = next % slots_;
      bool is_free = false;
      if (int e = device.free(slot, &is_free)) return e;
      if (!is_free) return 0;
      left_[slot].store((pieces_[next].count + group_units_ - 1) / group_units_,
                        std::memory_order_relaxed);
      opened_.store(next + 1, std::memory_order_release);
    }
    return 0;
  }

  // A thread: spin for a while after a run, then sleep until the next.
  void live() {
    long long seen = 0;
    for (;;) {
      for (long long turn = 0; run_.load(std::memory_order_relaxed) == seen && turn < 20'000; ++turn)
        pause(turn);
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return run_.load(std::memory_order_relaxed) != seen; });
        if (ending_) return;
        seen = run_.load(std::memory_order_relaxed);
        if (!open_) continue;
        inside_.fetch_add(1, std::memory_order_relaxed);
      }
      pack();
      inside_.fetch_sub(1, std::memory_order_release);
    }
  }

  void pack() {
    for (;;) {
      long long group = cursor_.fetch_add(1, std::memory_order_relaxed), at = group / groups_;
      if (at >= count()) return;
      const Parcel& piece = pieces_[at];
      long long i = group % groups_ * group_units_;
      if (i >= piece.count) continue;
      long long end = i + group_units_ < piece.count ? i + group_units_ : piece.count;
      for (long long turn = 0; opened_.load(std::memory_order_acquire) <= at; ++turn) {
        if (failed_.load(std::memory_order_relaxed)) return;
        pause(turn);
      }
      long long size = list_.unit_bytes;
      char* to = ring_ + at % slots_ * piece_bytes_;
      for (; i < end; ++i)
        std::memcpy(to + i * size, list_.host + list_.source[piece.first + i] * size, size);
      left_[at % slots_].fetch_sub(1, std::memory_order_release);
    }
  }

  long long count() const { return static_cast<long long>(pieces_.size()); }

  char* ring_;
  const long long piece_bytes_;
  const int slots_;
  std::vector<std::atomic<long long>> left_;  // groups of each slot's piece not yet packed
  std::vector<Parcel> pieces_;
  PackList list_{};
  long long group_units_ = 1, groups_ = 1, sent_ = 0;
  std::atomic<long long> cursor_{0}, opened_{0}, run_{0};
  std::atomic<int> inside_{0};
  std::atomic<bool> failed_{false};
  bool open_ = false, ending_ = false;  // under the mutex
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;  // last: they use the rest
};

}  // namespace oasis
