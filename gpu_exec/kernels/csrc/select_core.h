// Top-K, difference to residency, cap, victims and publication for one (request, KV head) pair.
//
// Written as phases of independent iterations with a barrier between them, so that the same text
// runs as one CTA on a GPU and as plain loops on a CPU (where CI tests it bit by bit).
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define OASIS_DEVICE __device__ __forceinline__
#define OASIS_FOR(i, n) for (int i = threadIdx.x; i < (n); i += blockDim.x)
#define OASIS_SYNC() __syncthreads()
#define OASIS_ADD(p, v) atomicAdd((p), (v))
#define OASIS_OR(p, v) atomicOr((p), (v))
#define OASIS_POPC(x) __popc(x)
#else
#define OASIS_DEVICE static inline
#define OASIS_FOR(i, n) for (int i = 0; i < (n); ++i)
#define OASIS_SYNC()
template <class T>
static inline T oasis_add(T* p, T v) {
  T old = *p;
  *p += v;
  return old;
}
#define OASIS_ADD(p, v) oasis_add((p), (v))
#define OASIS_OR(p, v) (*(p) |= (v))
#define OASIS_POPC(x) __builtin_popcount(x)
#endif

namespace oasis {

// Scratch of one pair; the pointers lie in shared memory (sizes in select_scratch_bytes).
struct SelectScratch {
  uint32_t* key;       // [blocks] order-preserving image of the score
  uint32_t* target;    // [words] bitmap of the target
  uint32_t* resident;  // [words] bitmap of the residents before admission
  uint32_t* equal;     // [words] bitmap of scores equal to the threshold
  uint32_t* attend;    // [(pool + 31) / 32] bitmap of attended slots
  int* hist;           // [256]
  int* slot_block;     // [pool]
  int* stamp;          // [pool]
  int* need;           // [chosen] needed blocks, unordered
  int* admit;          // [chosen] admitted blocks in target order
  int* evictable;      // [pool] slots outside the target
  int* place;          // [pool] slot of the j-th admitted block
  int* scalar;         // [8]
};

enum { kBin, kAbove, kInBin, kEvictable, kHeld, kNeeded, kMoveBase };

struct SelectArgs {
  const float* scores;    // [pairs][score_stride], indexed by block
  int* slot_block;        // [pairs][pool] block in the slot, -1 when free
  int* stamp;             // [pairs][pool] step of the last selection
  int* attend_unit;       // [pairs][attend_stride] units to attend next
  int* attend_count;      // [pairs]
  int* counts;            // [pairs][2]: needed, admitted (statistics)
  long long* move_bounds; // [2] begin, end of this layer's list; end is advanced
  long long* move_source; // host unit of each move
  int* move_target;       // unit in the layer's pool of each move
  long long score_stride, attend_stride;
  long long logical_base; // layer * heads_total * max_blocks is folded in by the caller
  long long pair_stride;  // logical host units between consecutive pairs of one layer and request
  long long request_stride;
  long long host_units;
  int heads, pool, chosen, cap, slots_per_pair, first_block, recent_blocks, block_tokens;
  int aliased;
};

OASIS_DEVICE uint32_t score_key(float score) {
  float canonical = score + 0.0f;  // -0 ties with +0
  uint32_t bits;
#ifdef __CUDACC__
  bits = __float_as_uint(canonical);
#else
  __builtin_memcpy(&bits, &canonical, 4);
#endif
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Modelled host unit -> unit of the pinned pool (twin: HostPlacement in gpu_exec/moves.py).
OASIS_DEVICE long long place_unit(long long logical, long long units, int aliased) {
  if (!aliased) return logical;
  uint64_t x = static_cast<uint64_t>(logical);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return static_cast<long long>((x ^ (x >> 31)) % static_cast<uint64_t>(units));
}

OASIS_DEVICE bool test_bit(const uint32_t* map, int i) { return map[i >> 5] >> (i & 31) & 1u; }

OASIS_DEVICE void set_bit(uint32_t* map, int i) { OASIS_OR(&map[i >> 5], 1u << (i & 31)); }

OASIS_DEVICE int bits_below(const uint32_t* map, int i) {
  int n = 0;
  for (int w = 0; w < (i >> 5); ++w) n += OASIS_POPC(map[w]);
  return n + OASIS_POPC(map[i >> 5] & ((1u << (i & 31)) - 1u));
}

// Find the bin, from the top, in which the running count reaches `need`.
OASIS_DEVICE void find_bin(const int* hist, int need, int* scalar) {
#ifdef __CUDACC__
  if (threadIdx.x < 32) {
    int lane = threadIdx.x, sum = 0;
    for (int i = 0; i < 8; ++i) sum += hist[255 - lane * 8 - i];
    int upto = sum;
    for (int d = 1; d < 32; d <<= 1) {
      int other = __shfl_up_sync(0xffffffffu, upto, d);
      if (lane >= d) upto += other;
    }
    int above = upto - sum;
    if (above < need && upto >= need) {
      int bin = 255 - lane * 8;
      while (above + hist[bin] < need) above += hist[bin--];
      scalar[kBin] = bin, scalar[kAbove] = above, scalar[kInBin] = hist[bin];
    }
  }
#else
  int above = 0, bin = 255;
  while (above + hist[bin] < need) above += hist[bin--];
  scalar[kBin] = bin, scalar[kAbove] = above, scalar[kInBin] = hist[bin];
#endif
}

// Mark the `want` best of n candidates: score descending, block ascending.
OASIS_DEVICE void mark_target(const SelectScratch& s, int n, int want, int first) {
  if (want <= 0) return;
  uint32_t prefix = 0, mask = 0;
  int need = want, in_bin = n;
  if (want < n) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      OASIS_FOR(i, 256) s.hist[i] = 0;
      OASIS_SYNC();
      OASIS_FOR(i, n) {
        uint32_t k = s.key[i];
        if ((k & mask) == prefix) OASIS_ADD(&s.hist[(k >> shift) & 255u], 1);
      }
      OASIS_SYNC();
      find_bin(s.hist, need, s.scalar);
      OASIS_SYNC();
      need -= s.scalar[kAbove];
      in_bin = s.scalar[kInBin];
      prefix |= static_cast<uint32_t>(s.scalar[kBin]) << shift;
      mask |= 255u << shift;
      if (in_bin == need) break;
    }
  } else {
    need = n;
  }
  bool all = in_bin == need;
  OASIS_FOR(i, n) {
    uint32_t k = s.key[i] & mask;
    if (k > prefix || (all && k == prefix)) set_bit(s.target, first + i);
    if (!all && k == prefix) set_bit(s.equal, first + i);
  }
  OASIS_SYNC();
  if (all) return;
  OASIS_FOR(i, n) {
    int block = first + i;
    if (test_bit(s.equal, block) && bits_below(s.equal, block) < need) set_bit(s.target, block);
  }
  OASIS_SYNC();
}

// Clear the maps, load the pair's state, build keys; n candidates from block `first`.
OASIS_DEVICE void load_pair(const SelectArgs& a, const SelectScratch& s, int pair, int n) {
  int words = (a.first_block + n + 32) / 32;
  OASIS_FOR(i, words) s.target[i] = s.resident[i] = s.equal[i] = 0;
  OASIS_FOR(i, (a.pool + 31) / 32) s.attend[i] = 0;
  OASIS_FOR(i, 8) s.scalar[i] = 0;
  const float* scores = a.scores + pair * a.score_stride + a.first_block;
  OASIS_FOR(i, n) s.key[i] = score_key(scores[i]);
  OASIS_FOR(i, a.pool) {
    s.slot_block[i] = a.slot_block[static_cast<long long>(pair) * a.pool + i];
    s.stamp[i] = a.stamp[static_cast<long long>(pair) * a.pool + i];
  }
  OASIS_SYNC();
}

// Rank needed blocks by score and slots by eviction order; returns the number admitted.
OASIS_DEVICE int rank_moves(const SelectArgs& a, const SelectScratch& s) {
  int needed = s.scalar[kNeeded], held = s.scalar[kHeld], evictable = s.scalar[kEvictable];
  int admitted = needed < a.cap ? needed : a.cap;
  int room = a.pool - held;
  int victims = admitted > room ? admitted - room : 0;
  int left = held + admitted - victims - a.chosen;
  int dropped = left > 0 ? left : 0;
  if (admitted > 0) {
    OASIS_FOR(j, needed) {
      int block = s.need[j], rank = 0;
      uint32_t key = s.key[block - a.first_block];
      for (int i = 0; i < needed; ++i) {
        uint32_t other = s.key[s.need[i] - a.first_block];
        rank += other > key || (other == key && s.need[i] < block);
      }
      if (rank < admitted) s.admit[rank] = block;
    }
    if (room > 0) {
      OASIS_FOR(i, a.pool) {
        if (s.slot_block[i] < 0) {
          int rank = 0;
          for (int j = 0; j < i; ++j) rank += s.slot_block[j] < 0;
          if (rank < admitted) s.place[rank] = i;
        }
      }
    }
  }
  if (victims + dropped > 0) {
    int free_used = admitted - victims;
    OASIS_FOR(j, evictable) {
      int slot = s.evictable[j], rank = 0;
      int stamp = s.stamp[slot], block = s.slot_block[slot];
      for (int i = 0; i < evictable; ++i) {
        int other = s.evictable[i];
        int st = s.stamp[other];
        rank += st < stamp || (st == stamp && s.slot_block[other] < block);
      }
      if (rank < victims) s.place[free_used + rank] = slot;
      else if (rank >= victims + dropped) set_bit(s.attend, slot);
    }
  } else {
    OASIS_FOR(j, evictable) set_bit(s.attend, s.evictable[j]);
  }
  OASIS_SYNC();
  return admitted;
}

// Decide one pair at step `step` for the position that follows `position`.
OASIS_DEVICE void select_pair(const SelectArgs& a, const SelectScratch& s, int pair, int position,
                              int step) {
  int n = (position + 1) / a.block_tokens - a.recent_blocks + 1 - a.first_block;
  if (n < 0) n = 0;
  load_pair(a, s, pair, n);
  mark_target(s, n, a.chosen < n ? a.chosen : n, a.first_block);
  OASIS_FOR(i, a.pool) {
    int block = s.slot_block[i];
    if (block < 0) continue;
    OASIS_ADD(&s.scalar[kHeld], 1);
    int inside = block - a.first_block;
    if (inside >= 0 && inside < n) set_bit(s.resident, block);
    if (inside >= 0 && inside < n && test_bit(s.target, block)) set_bit(s.attend, i);
    else s.evictable[OASIS_ADD(&s.scalar[kEvictable], 1)] = i;
  }
  OASIS_SYNC();
  OASIS_FOR(i, n) {
    int block = a.first_block + i;
    if (test_bit(s.target, block) && !test_bit(s.resident, block))
      s.need[OASIS_ADD(&s.scalar[kNeeded], 1)] = block;
  }
  OASIS_SYNC();
  int admitted = rank_moves(a, s);
#ifdef __CUDACC__
  if (threadIdx.x == 0)
#endif
  {
    s.scalar[kMoveBase] = 0;
    if (admitted > 0)
      s.scalar[kMoveBase] = static_cast<int>(
          OASIS_ADD(reinterpret_cast<unsigned long long*>(a.move_bounds + 1),
                    static_cast<unsigned long long>(admitted)) - a.move_bounds[0]);
    a.counts[2 * pair] = s.scalar[kNeeded];
    a.counts[2 * pair + 1] = admitted;
  }
  OASIS_SYNC();
  int request = pair / a.heads, head = pair % a.heads;
  long long home = a.logical_base + request * a.request_stride + head * a.pair_stride;
  OASIS_FOR(j, admitted) {
    int slot = s.place[j], block = s.admit[j];
    long long at = a.move_bounds[0] + s.scalar[kMoveBase] + j;
    a.move_source[at] = place_unit(home + block, a.host_units, a.aliased);
    a.move_target[at] = pair * a.slots_per_pair + slot;
    a.slot_block[static_cast<long long>(pair) * a.pool + slot] = block;
    s.slot_block[slot] = block;
    set_bit(s.attend, slot);
  }
  OASIS_SYNC();
  OASIS_FOR(i, a.pool) {
    int block = s.slot_block[i] - a.first_block;
    if (block >= 0 && block < n && test_bit(s.target, block + a.first_block))
      a.stamp[static_cast<long long>(pair) * a.pool + i] = step;
    if (test_bit(s.attend, i))
      a.attend_unit[pair * a.attend_stride + bits_below(s.attend, i)] =
          pair * a.slots_per_pair + i;
  }
  int words = (a.pool + 31) / 32;
#ifdef __CUDACC__
  if (threadIdx.x == 0)
#endif
  {
    int total = 0;
    for (int w = 0; w < words; ++w) total += OASIS_POPC(s.attend[w]);
    a.attend_count[pair] = total;
  }
}

// Carve the scratch of one pair from `base`; returns the bytes used.
OASIS_DEVICE long long carve_scratch(SelectScratch* s, char* base, int blocks, int pool,
                                     int chosen) {
  int words = (blocks + 63) / 32, pool_words = (pool + 31) / 32;
  uint32_t* p = reinterpret_cast<uint32_t*>(base);
  uint32_t* start = p;
  s->key = p, p += blocks;
  s->target = p, p += words;
  s->resident = p, p += words;
  s->equal = p, p += words;
  s->attend = p, p += pool_words;
  s->hist = reinterpret_cast<int*>(p), p += 256;
  s->slot_block = reinterpret_cast<int*>(p), p += pool;
  s->stamp = reinterpret_cast<int*>(p), p += pool;
  s->need = reinterpret_cast<int*>(p), p += chosen;
  s->admit = reinterpret_cast<int*>(p), p += chosen;
  s->evictable = reinterpret_cast<int*>(p), p += pool;
  s->place = reinterpret_cast<int*>(p), p += pool;
  s->scalar = reinterpret_cast<int*>(p), p += 8;
  return (p - start) * 4;
}

}  // namespace oasis
