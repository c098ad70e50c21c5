// Where a thread that submits copies runs: it moves on from a processor that has become slow.
#pragma once
#include <sched.h>

namespace oasis {

constexpr double kSlow = 1.3;      // times the best pace: the processor is shared just now
constexpr double kForget = 1.002;  // by which the best pace grows with every part
constexpr int kPartsPerMove = 4;   // at least, so that moving costs little where nothing helps

// What a thread knows from one call to the next.
struct Pace {
  double best;  // least time per unit so far, slowly forgotten; 0: none
  int place;    // index of the processor; negative: not bound yet
  int parts;    // submitted since the last move
};

// Bind the calling thread to a processor; false where that is not allowed.
inline bool bind_to(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

// Keep a thread to `processors[pace.place]` while it lives, and to the next one after slow parts.
class Mover {
 public:
  Mover(const int* processors, int count, Pace* pace)
      : processors_(processors), count_(count), pace_(pace) {
    if (!count_ || sched_getaffinity(0, sizeof before_, &before_)) return;
    bound_ = bind_to(processors_[pace_->place < 0 ? 0 : pace_->place % count_]);
    if (bound_ && pace_->place < 0) pace_->place = 0;
  }
  ~Mover() {
    if (bound_) sched_setaffinity(0, sizeof before_, &before_);
  }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Note what a unit of the last part took.
  void took(double us) {
    if (!bound_) return;
    ++pace_->parts;
    pace_->best = pace_->best > 0 && us > pace_->best ? pace_->best * kForget : us;
    if (us <= kSlow * pace_->best || pace_->parts < kPartsPerMove || count_ < 2) return;
    pace_->place = (pace_->place + 1) % count_, pace_->parts = 0;
    bound_ = bind_to(processors_[pace_->place]) || bound_;
  }

 private:
  const int* processors_;
  int count_;
  Pace* pace_;
  cpu_set_t before_;
  bool bound_ = false;
};

}  // namespace oasis
