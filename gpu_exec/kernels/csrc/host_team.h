// A team of host threads that shares the parts of a list of copies. No CUDA here: who releases
// layers and submits parts is an argument.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace oasis {

constexpr auto kReleaseTimeout = std::chrono::seconds(20);
constexpr int kTimedOut = 702;  // cudaErrorLaunchTimeout

struct Part {
  long long first, end;  // moves
  int layer;
  bool opens, closes;    // first and last part of its layer
};

inline void pause(long long turn) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
  if (turn % 1024 == 1023) std::this_thread::yield();
}

// Return the moves of the layers [begin, end) in parts of at most `most`, in order.
inline std::vector<Part> parts_of(const long long* offset, int begin, int end, long long most) {
  std::vector<Part> parts;
  for (int layer = begin; layer < end; ++layer)
    for (long long i = offset[layer]; i < offset[layer + 1]; i += most) {
      long long last = i + most < offset[layer + 1] ? i + most : offset[layer + 1];
      parts.push_back({i, last, layer, i == offset[layer], last == offset[layer + 1]});
    }
  return parts;
}

// Spin until done() or an error; 0 or kTimedOut.
template <class Done>
int spin_until(Done done) {
  auto end = std::chrono::steady_clock::now() + kReleaseTimeout;
  for (long long turn = 1; !done(); ++turn) {
    pause(turn);
    if (turn % 4096 == 0 && std::chrono::steady_clock::now() > end) return kTimedOut;
  }
  return 0;
}

class Team {
 public:
  // `start(member)` is called once in every thread, before its first part.
  template <class Start>
  Team(int members, Start start) {
    for (int member = 0; member < members; ++member)
      threads_.emplace_back([this, member, start] {
        start(member);
        live(member);
      });
  }
  ~Team() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
      ++run_;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Share the parts: a member takes the next one, waits for `work.released(layer)` and calls
  // `work.submit(member, part)`. Returns 0 or the first error, once every member is done.
  template <class Work>
  int share(const std::vector<Part>& parts, Work& work) {
    std::atomic<size_t> next{0};
    std::atomic<int> error{0};
    do_all([&](int member) {
      for (size_t at; (at = next.fetch_add(1)) < parts.size() && !error;) {
        int layer = parts[at].layer;
        int found = spin_until([&] { return work.released(layer) || error; });
        if (!found && !error) found = work.submit(member, parts[at]);
        int none = 0;
        if (found) error.compare_exchange_strong(none, found);
      }
    });
    return error;
  }

 private:
  void do_all(std::function<void(int)> job) {
    job_ = std::move(job);
    busy_ = static_cast<int>(threads_.size());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++run_;
    }
    wake_.notify_all();
    for (long long turn = 0; busy_.load(std::memory_order_acquire); ++turn) pause(turn);
  }

  // A thread: spin for a while after a run, then sleep until the next.
  void live(int member) {
    for (long long seen = 0;;) {
      for (long long turn = 0; run_.load(std::memory_order_relaxed) == seen && turn < 20'000; ++turn)
        pause(turn);
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return run_.load(std::memory_order_relaxed) != seen; });
        if (ending_) return;
        seen = run_.load(std::memory_order_relaxed);
      }
      job_(member);
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::function<void(int)> job_;
  std::atomic<long long> run_{0};
  std::atomic<int> busy_{0};
  bool ending_ = false;  // under the mutex
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;  // last: they use the rest
};

}  // namespace oasis
