// The selection kernel's text, the layout and the packer of host copies, compiled for the CPU so
// that any machine can test them.
#include <cstddef>
#include <vector>

#include "host_pack.h"
#include "layout.h"
#include "select_core.h"

extern "C" int oasis_select_cpu(const oasis::SelectArgs* args, const int* position, int step,
                                int pairs, int max_blocks) {
  oasis::SelectScratch scratch;
  std::vector<char> base(4 * (8 * static_cast<size_t>(max_blocks) + 8 * args->pool +
                              2 * args->chosen + 2048));
  oasis::carve_scratch(&scratch, base.data(), max_blocks, args->pool, args->chosen);
  for (int pair = 0; pair < pairs; ++pair)
    oasis::select_pair(*args, scratch, pair, position + pair / args->heads, &step);
  return 0;
}

// kind 0: K element, 1: V element, 2: bf16 bound byte, 3: fp8 bound byte.
extern "C" int oasis_layout(int kind, int row, int column) {
  if (kind == 0) return oasis::key_index(row, column);
  if (kind == 1) return oasis::value_index(row, column);
  return oasis::bound_offset(row, column, kind == 3);
}

namespace {

struct Sent {
  char* to;
  const char* from;
  long long bytes;
  int asks;
};

// A device that releases layers late and copies a piece only when it says that its slot is free.
// Host units of a layer hold their contents from its release on, not before.
class LateDevice {
 public:
  LateDevice(const oasis::PackList& list, char* host, const char* contents, char* landing, int slots,
             int lag)
      : list_(list), host_(host), contents_(contents), landing_(landing), sent_(slots), lag_(lag),
        asks_(lag) {}

  bool released(int layer) {
    if (layer < released_) return true;
    if (layer > released_ || asks_-- > 0) return false;
    for (long long i = list_.offset[layer]; i < list_.offset[layer + 1]; ++i) {
      long long at = list_.source[i] * list_.unit_bytes;
      std::memcpy(host_ + at, contents_ + at, list_.unit_bytes);
    }
    ++released_;
    asks_ = lag_;
    return true;
  }
  int free(int slot, bool* is_free) {
    Sent& sent = sent_[slot];
    *is_free = !sent.to || sent.asks-- <= 0;
    if (*is_free) arrive(sent);
    return 0;
  }
  int send(const oasis::Parcel& piece, const char* packed, int slot) {
    if (sent_[slot].to) return 1;
    char* to = landing_ + (piece.first - list_.offset[0]) * list_.unit_bytes;
    sent_[slot] = {to, packed, piece.count * list_.unit_bytes, lag_};
    return 0;
  }
  int layer(int layer, bool ended) { return layer >= released_ || ended != (heard_++ % 2 == 1); }
  void arrive() {
    for (Sent& sent : sent_) arrive(sent);
  }

 private:
  static void arrive(Sent& sent) {
    if (sent.to) std::memcpy(sent.to, sent.from, sent.bytes);
    sent.to = nullptr;
  }

  const oasis::PackList& list_;
  char* host_;
  const char* contents_;
  char* landing_;
  std::vector<Sent> sent_;
  int lag_, asks_, released_ = 0, heard_ = 0;
};

}  // namespace

// Pack the list `runs` times with one packer; `landing` holds the units of each run behind the last.
extern "C" int oasis_pack_cpu(char* host, const char* contents, const long long* offset,
                              const long long* source, long long unit_bytes, int layers, int threads,
                              long long piece_bytes, int slots, int lag, int runs, char* landing) {
  std::vector<char> ring(piece_bytes * slots);
  oasis::Packer packer(threads, ring.data(), piece_bytes, slots);
  oasis::PackList list{host, offset, source, unit_bytes, 0, layers};
  for (int run = 0; run < runs; ++run) {
    LateDevice device(list, host, contents, landing, slots, lag);
    if (int error = packer.run(list, device)) return error;
    device.arrive();
    landing += (offset[layers] - offset[0]) * unit_bytes;
  }
  return 0;
}
